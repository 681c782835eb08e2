"""What every room stands on: types, errors, ids, arrays, registers, mathematics, files."""
