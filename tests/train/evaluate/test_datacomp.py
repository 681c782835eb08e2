"""DataComp's 38 tasks: the table, and averages that hide nothing."""

from collections import Counter

import pytest

from tamis.train.evaluate.tasks import GROUPS, averages, entries, entry_of

SHIFTS = {"ImageNet Sketch", "ImageNet v2", "ImageNet-A", "ImageNet-O", "ImageNet-R", "ObjectNet"}
VTAB = {
    *("Caltech-101", "CIFAR-100", "CLEVR Counts", "CLEVR Distance", "Describable Textures", "EuroSAT"),
    *("KITTI Vehicle Distance", "Oxford Flowers-102", "Oxford-IIIT Pet", "PatchCamelyon", "RESISC45", "SVHN", "SUN397"),
}


def test_the_table_is_datacomps() -> None:
    assert len(entries()) == 38
    # With FairFace's 10,954 and UTKFace's 23,703, which have no score: the 732,026 examples that DataComp evaluates.
    assert sum(entry.size for entry in entries()) == 732_026 - 10_954 - 23_703
    members = {group: {entry.name for entry in entries() if entry.group == group} for group in GROUPS}
    assert members == {
        "ImageNet": {"ImageNet 1k"},
        "ImageNet shifts": SHIFTS,
        "VTAB": VTAB,
        "Retrieval": {"Flickr", "MSCOCO", "WinoGAViL"},
    }
    metrics = Counter(entry.metric for entry in entries())
    assert metrics.pop("acc1") == 38 - 4 - 2 - 5
    assert metrics.pop("mean_per_class_recall") == 4
    assert metrics.pop("mean_recall@1") == 2
    assert set(metrics) == {"jaccard_score_10-12", "F1-macro_all", "acc_worst_region", "acc_top5_wg", "acc_wg"}
    recalls = {entry.name for entry in entries() if entry.metric == "mean_per_class_recall"}
    assert recalls == {"Caltech-101", "FGVC Aircraft", "Oxford Flowers-102", "Oxford-IIIT Pet"}
    folders = [folder for entry in entries() for folder in entry.folders]
    assert len(set(folders)) == len(folders)
    assert entry_of("dtd") is None  # vtab-dtd is DataComp's
    for entry in entries():
        assert entry.metric in entry.worst or "w" not in entry.metric.split("_")[-1]
        assert set(entry.worst.values()) <= set(entry.fields)


def test_averages_are_datacomps_where_all_tasks_are_there() -> None:
    scores = {entry.name: number / 100 for number, entry in enumerate(entries())}
    found = {average.name: average.value for average in averages(scores)}
    assert found["ImageNet"] == scores["ImageNet 1k"]
    assert found["ImageNet shifts"] == pytest.approx(sum(scores[name] for name in SHIFTS) / 6)
    assert found["VTAB"] == pytest.approx(sum(scores[name] for name in VTAB) / 13)
    assert found["all 38"] == pytest.approx(sum(range(38)) / 38 / 100)
    assert not any(average.absent for average in averages(scores))


def test_absent_tasks_are_listed_and_never_averaged_away() -> None:
    image_net, shifts, vtab, retrieval, overall = averages({"SVHN": 0.5, "MNIST": 0.1, "EuroSAT": 0.25, "mine": 1.0})
    assert (image_net.name, image_net.value) == ("ImageNet: none present of 1 task", None)
    assert image_net.absent == ("ImageNet 1k",)
    assert shifts.value is None
    assert (vtab.name, vtab.value, vtab.tasks) == ("VTAB: average of the 2 present of 13 tasks", 0.375, 2)
    assert set(vtab.absent) == VTAB - {"SVHN", "EuroSAT"}
    assert retrieval.absent == ("Flickr", "MSCOCO", "WinoGAViL")
    assert overall.name == "all 38: average of the 3 present of 38 tasks"
    assert overall.value == pytest.approx(0.85 / 3)
    assert len(overall.absent) == 35
