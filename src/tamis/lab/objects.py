"""A function per object class that draws it on a page of 100 by 100 units.

Most of an object has the given colour, so that "a blue teapot" is clearly blue; parts with a colour of their own
(wheels, wood, leaves) are small. Animals and vehicles face right. Objects stand at the bottom of the page.
"""

from collections.abc import Callable
from math import cos, pi, sin

from tamis.lab.pen import Pen, Shades, at
from tamis.lab.world import RGB

_WHITE: RGB = (255, 255, 255)
_INK: RGB = (34, 34, 38)
_TYRE: RGB = (46, 46, 52)
_STEEL: RGB = (184, 190, 198)
_DARK_STEEL: RGB = (118, 124, 134)
_WOOD: RGB = (196, 152, 98)
_LEAF: RGB = (62, 148, 66)
_GLASS: RGB = (206, 232, 246)
_CREAM: RGB = (250, 236, 208)
_FLAME: RGB = (255, 190, 40)
_LAMPLIGHT: RGB = (255, 240, 170)
_BEAK: RGB = (250, 166, 30)
_SKIN: RGB = (236, 208, 164)


def dog(pen: Pen, c: Shades) -> None:
    pen.curve(c.base, 7, (16, 52), (6, 42), (5, 28))  # tail
    for x in (20, 33, 58, 70):
        pen.box(c.dark if x in (33, 58) else c.base, x - 5, 60, x + 5, 95, 4)
    pen.blob(c.base, (13, 52), (28, 44), (55, 46), (76, 44), (79, 62), (68, 74), (40, 72), (20, 74))
    pen.blob(c.base, (62, 48), (62, 26), (74, 13), (88, 18), (90, 34), (80, 52))  # head
    pen.blob(c.base, (80, 26), (96, 29), (98, 37), (92, 43), (78, 42))  # snout
    pen.oval(_INK, 96, 30, 4, 3.2)
    pen.stroke(c.mark, 1.6, (95, 38), (84, 38))
    pen.blob((240, 110, 120), (87, 39), (92, 39), (91, 49), (87, 48))  # tongue
    pen.blob(c.dark, (64, 18), (74, 18), (74, 36), (67, 46), (59, 38))  # ear
    pen.eye(81, 25, 3.6)
    pen.stroke((220, 60, 60) if c.base[0] < 180 else (50, 90, 190), 4, (62, 47), (70, 53), (80, 53))  # collar


def cat(pen: Pen, c: Shades) -> None:
    pen.curve(c.base, 8, (66, 90), (88, 88), (93, 70), (86, 56))  # tail
    pen.blob(c.base, (36, 50), (64, 50), (74, 76), (72, 94), (28, 94), (26, 76))
    pen.oval(c.light, 50, 76, 11, 15)
    pen.box(c.base, 36, 72, 47, 96, 5)
    pen.box(c.base, 53, 72, 64, 96, 5)
    pen.stroke(c.mark, 1.4, (50, 78), (50, 94))
    pen.poly(c.base, (23, 36), (22, 5), (46, 19))  # ears
    pen.poly(c.base, (77, 36), (78, 5), (54, 19))
    pen.poly((246, 160, 170), (27, 26), (26, 12), (37, 19))
    pen.poly((246, 160, 170), (73, 26), (74, 12), (63, 19))
    pen.oval(c.base, 50, 36, 29, 23)
    for x in (38, 62):
        pen.oval((190, 226, 90), x, 33, 6.5, 7)
        pen.oval(_INK, x, 33, 2.4, 6.4)
    pen.poly((240, 120, 140), (46, 42), (54, 42), (50, 47))
    pen.curve(c.mark, 1.6, (42, 49), (46, 51), (50, 47), (54, 51), (58, 49))
    for y, end in ((44, 41), (48, 49)):
        pen.stroke(c.mark, 1.2, (37, y), (16, end))
        pen.stroke(c.mark, 1.2, (63, y), (84, end))


def house(pen: Pen, c: Shades) -> None:
    pen.box(c.dark, 68, 12, 79, 40)  # chimney
    pen.box(c.base, 14, 46, 86, 95)
    pen.poly(c.dark, (4, 50), (50, 8), (96, 50))
    pen.poly(c.base, (20, 46), (50, 18), (80, 46))
    pen.box((120, 78, 48), 42, 64, 58, 95)
    pen.disc(_FLAME, 54, 80, 1.8)
    for x in (20, 65):
        pen.box(_WHITE, x, 58, x + 16, 76)
        pen.box(_GLASS, x + 2, 60, x + 14, 74)
        pen.stroke(_WHITE, 1.8, (x + 8, 60), (x + 8, 74))
        pen.stroke(_WHITE, 1.8, (x + 2, 67), (x + 14, 67))
    pen.disc(_WHITE, 50, 37, 7)
    pen.disc(_GLASS, 50, 37, 5)


def car(pen: Pen, c: Shades) -> None:
    pen.blob(c.base, (20, 58), (30, 38), (42, 33), (62, 33), (72, 40), (80, 58))
    pen.box(c.base, 3, 53, 97, 80, 9)
    pen.poly(_GLASS, (29, 54), (37, 40), (49, 39), (49, 54))
    pen.poly(_GLASS, (53, 54), (53, 39), (63, 40), (72, 54))
    pen.box(c.dark, 3, 71, 97, 80, 4)
    pen.stroke(c.mark, 1.4, (51, 55), (51, 72))
    pen.stroke(c.mark, 1.8, (55, 61), (60, 61))
    pen.oval(_LAMPLIGHT, 94, 61, 3, 4)
    pen.oval((230, 60, 50), 5, 61, 2.4, 4)
    for x in (25, 75):
        pen.disc(_TYRE, x, 80, 13)
        pen.disc(_STEEL, x, 80, 6.5)
        pen.disc(_DARK_STEEL, x, 80, 2.4)


def flower(pen: Pen, c: Shades) -> None:
    pen.curve(_LEAF, 5, (50, 40), (51, 70), (48, 96))
    pen.blob(_LEAF, (49, 84), (64, 68), (80, 66), (70, 82))
    pen.blob(_LEAF, (49, 90), (36, 74), (20, 72), (30, 87))
    for i in range(8):
        a = 2 * pi * (i + 0.5) / 8
        pen.oval(c.base, 50 + 20 * cos(a), 32 + 20 * sin(a), 15, 9.5, a * 180 / pi)
    for i in range(8):
        a = 2 * pi * (i + 0.5) / 8
        pen.stroke(c.dark, 2, (50 + 12 * cos(a), 32 + 12 * sin(a)), (50 + 26 * cos(a), 32 + 26 * sin(a)))
        pen.stroke(
            c.dark,
            2,
            (50 + 12 * cos(a + 0.39), 32 + 12 * sin(a + 0.39)),
            (50 + 24 * cos(a + 0.39), 32 + 24 * sin(a + 0.39)),
        )
    middle = (110, 66, 32) if c.base[0] > 235 and 190 < c.base[1] < 240 else (250, 200, 50)
    pen.disc(middle, 50, 32, 9.5)
    pen.disc((150, 92, 30), 50, 32, 5)


def tree(pen: Pen, c: Shades) -> None:
    pen.poly((122, 82, 50), (44, 95), (46, 55), (54, 55), (57, 95))
    pen.stroke((122, 82, 50), 4, (50, 72), (64, 56))
    pen.stroke((122, 82, 50), 4, (50, 76), (36, 60))
    for x, y, r in ((30, 46, 19), (70, 46, 19), (50, 54, 16), (36, 26, 18), (64, 26, 18), (50, 18, 15), (50, 38, 22)):
        pen.disc(c.base, x, y, r)
    for x, y in ((32, 50), (66, 52), (48, 30), (70, 32), (34, 30), (50, 56)):
        pen.arc(c.dark, 2.6, x, y, 7, 6, 10, 160)


def shirt(pen: Pen, c: Shades) -> None:
    pen.poly(c.base, *at("34,12 6,26 14,52 28,46 28,94 72,94 72,46 86,52 94,26 66,12"))
    pen.pie(c.dark, 50, 12, 16, 14, 0, 180)
    pen.pie(c.mark, 50, 12, 12, 9, 0, 180)
    pen.stroke(c.dark, 2.2, (28, 46), (31, 36))
    pen.stroke(c.dark, 2.2, (72, 46), (69, 36))
    pen.stroke(c.dark, 2.2, (11, 42), (24, 36))
    pen.stroke(c.dark, 2.2, (89, 42), (76, 36))
    pen.stroke(c.dark, 2.2, (29, 89), (71, 89))
    pen.box(c.dark, 55, 44, 67, 58, 2)


def bird(pen: Pen, c: Shades) -> None:
    pen.stroke(_BEAK, 2.6, (44, 78), (43, 95), (51, 95))
    pen.stroke(_BEAK, 2.6, (56, 78), (55, 95), (63, 95))
    pen.poly(c.dark, (22, 56), (2, 40), (3, 58), (10, 66), (28, 68))  # tail
    pen.poly(_BEAK, (86, 28), (99, 34), (86, 40))
    pen.blob(c.base, (18, 58), (38, 46), (56, 36), (66, 18), (82, 17), (89, 32), (84, 56), (68, 76), (42, 80))
    pen.blob(c.light, (82, 46), (78, 66), (60, 77), (62, 66), (74, 56))
    pen.blob(c.dark, (26, 54), (44, 46), (62, 52), (58, 66), (42, 70), (24, 68))  # wing
    pen.stroke(c.mark, 1.3, (34, 63), (50, 62))
    pen.stroke(c.mark, 1.3, (38, 57), (53, 56))
    pen.eye(76, 29, 4.4)


def chair(pen: Pen, c: Shades) -> None:
    pen.box(c.dark, 36, 62, 43, 86)
    pen.box(c.dark, 80, 56, 87, 86)
    pen.box(c.base, 16, 8, 25, 96, 2)  # back
    pen.box(c.base, 37, 3, 45, 58, 2)
    for y in (12, 25, 38):
        pen.poly(c.base, (18, y), (42, y - 5), (42, y + 4), (18, y + 9))
    pen.box(c.base, 62, 62, 71, 96, 2)
    pen.poly(c.light, (14, 60), (38, 49), (92, 49), (72, 62))
    pen.poly(c.base, (14, 60), (72, 62), (72, 71), (14, 69))
    pen.poly(c.dark, (72, 62), (92, 49), (92, 57), (72, 71))


def apple(pen: Pen, c: Shades) -> None:
    pen.curve((110, 72, 40), 4, (50, 26), (51, 14), (57, 6))
    pen.blob(_LEAF, (54, 18), (64, 6), (82, 8), (72, 20))
    pen.blob(c.base, *at("50,27 66,20 84,28 91,50 82,80 64,95 50,91 36,95 18,80 9,50 16,28 34,20"))  # fmt: skip
    pen.blob(c.dark, (84, 34), (90, 52), (80, 80), (64, 93), (74, 74), (80, 52))
    pen.oval(c.light, 27, 42, 5, 10, 25)


def book(pen: Pen, c: Shades) -> None:
    pen.poly(c.dark, (14, 84), (20, 76), (86, 76), (86, 92), (20, 95))
    pen.poly(_CREAM, (22, 80), (84, 78), (84, 90), (22, 91))
    for y in (83, 87):
        pen.stroke((200, 186, 160), 1, (24, y), (83, y - 0.6))
    pen.box(c.base, 16, 6, 86, 80, 2)
    pen.box(c.dark, 16, 6, 27, 84, 2)  # spine
    pen.box(c.light, 36, 18, 78, 40, 2)
    pen.stroke(c.dark, 3, (42, 25), (72, 25))
    pen.stroke(c.dark, 3, (47, 33), (67, 33))
    pen.disc(c.light, 57, 60, 8)


def sofa(pen: Pen, c: Shades) -> None:
    for x in (16, 84):
        pen.box((110, 74, 46), x - 4, 82, x + 4, 95)
    pen.box(c.base, 12, 30, 88, 78, 10)
    pen.stroke(c.dark, 2, (50, 33), (50, 60))
    pen.box(c.light, 18, 56, 50, 72, 4)
    pen.box(c.light, 50, 56, 82, 72, 4)
    pen.stroke(c.dark, 2, (50, 58), (50, 71))
    pen.box(c.dark, 12, 70, 88, 87, 3)
    pen.box(c.base, 3, 46, 19, 87, 7)
    pen.box(c.base, 81, 46, 97, 87, 7)


def hat(pen: Pen, c: Shades) -> None:
    pen.oval(c.base, 50, 82, 47, 13)
    pen.oval(c.dark, 50, 79, 34, 9)
    pen.poly(c.base, (24, 14), (76, 14), (72, 78), (28, 78))
    pen.pie(c.base, 50, 77, 22, 7, 0, 180)
    pen.oval(c.light, 50, 14, 26, 7)
    band: RGB = (60, 50, 54) if c.base[0] + c.base[1] + c.base[2] > 200 else (190, 60, 60)
    pen.poly(band, (26.6, 62), (73.4, 62), (72, 77), (50, 83), (28, 77))


def bus(pen: Pen, c: Shades) -> None:
    pen.box(c.base, 2, 20, 98, 82, 8)
    pen.box(c.dark, 2, 68, 98, 82, 4)
    for x in (8, 25, 42, 59):
        pen.box(_GLASS, x, 30, x + 14, 50, 2)
    pen.box(_GLASS, 76, 30, 88, 76, 2)  # door
    pen.stroke(c.mark, 1.4, (82, 30), (82, 76))
    pen.box(_GLASS, 92, 30, 98, 54, 2)
    pen.stroke(c.light, 3, (6, 59), (72, 59))
    pen.oval(_LAMPLIGHT, 95, 68, 2.6, 3.4)
    for x in (24, 64):
        pen.disc(_TYRE, x, 83, 11.5)
        pen.disc(_STEEL, x, 83, 5.5)


def fish(pen: Pen, c: Shades) -> None:
    pen.poly(c.dark, (26, 52), (2, 26), (8, 52), (2, 80))  # tail
    pen.blob(c.dark, (36, 32), (50, 14), (68, 18), (72, 34))
    pen.blob(c.dark, (46, 70), (44, 88), (58, 84), (64, 72))
    pen.blob(c.base, (18, 52), (36, 34), (60, 27), (84, 36), (97, 53), (84, 68), (60, 78), (36, 70))
    pen.arc(c.dark, 3, 66, 53, 10, 18, -70, 70)
    for x, y in ((46, 44), (46, 58), (36, 51), (58, 50), (56, 38), (56, 64)):
        pen.arc(c.dark, 2.2, x, y, 4.5, 5, 90, 270)
    pen.eye(84, 47, 5)
    pen.stroke(c.mark, 1.8, (95, 57), (88, 59))


def lamp(pen: Pen, c: Shades) -> None:
    pen.oval(_DARK_STEEL, 50, 90, 20, 6)
    pen.stroke(_DARK_STEEL, 5, (50, 56), (50, 88))
    pen.oval(_DARK_STEEL, 50, 74, 6, 8)
    pen.stroke(_DARK_STEEL, 1.6, (66, 54), (66, 68))
    pen.oval(_LAMPLIGHT, 50, 55, 32, 6)
    pen.poly(c.base, (34, 8), (66, 8), (86, 55), (14, 55))
    pen.pie(c.base, 50, 54.5, 36, 6, 0, 180)
    pen.poly(c.light, (38, 8), (47, 8), (40, 57), (24, 57))
    pen.stroke(c.dark, 2.4, (34, 9), (66, 9))


def bicycle(pen: Pen, c: Shades) -> None:
    for x in (22, 78):
        pen.arc(_TYRE, 4, x, 70, 20, 20, 0, 360)
        pen.arc(c.base, 4, x, 70, 16, 16, 0, 360)
        for k in range(4):
            a = k * pi / 4
            pen.stroke(_STEEL, 1, (x - 14 * cos(a), 70 - 14 * sin(a)), (x + 14 * cos(a), 70 + 14 * sin(a)))
    pen.stroke(c.base, 7.5, (22, 70), (48, 72), (70, 38), (36, 40), (22, 70))
    pen.stroke(c.base, 7.5, (48, 72), (33, 28))
    pen.stroke(c.base, 7.5, (78, 70), (68, 28))
    pen.blob(_INK, (22, 25), (34, 24), (44, 27), (34, 31))  # saddle
    pen.curve(_DARK_STEEL, 5, (68, 27), (78, 20), (86, 26), (80, 33))  # handlebar
    pen.disc(_DARK_STEEL, 48, 72, 6)
    pen.stroke(_INK, 3, (48, 72), (54, 84), (60, 84))


def bottle(pen: Pen, c: Shades) -> None:
    pen.box((176, 130, 84), 43, 3, 57, 14, 2)  # cork
    pen.blob(c.base, *at("43,12 57,12 58,30 70,44 71,70 70,93 30,93 29,70 30,44 42,30"))
    pen.box(c.dark, 41, 11, 59, 18, 2)
    pen.box(_CREAM, 31, 56, 69, 76)
    pen.disc(c.base, 50, 66, 6)
    pen.stroke(c.light, 4, (38, 46), (38, 52))


def mug(pen: Pen, c: Shades) -> None:
    pen.arc(c.base, 8, 74, 58, 16, 17, -100, 100)
    pen.box(c.base, 14, 28, 74, 94, 9)
    pen.oval(c.dark, 44, 31, 30, 8)
    pen.oval((92, 58, 36), 44, 32, 25, 5.5)
    pen.stroke(c.light, 5, (24, 50), (24, 80))
    for x in (34, 52):
        pen.curve((236, 240, 245), 3, (x, 20), (x + 5, 14), (x - 2, 9), (x + 3, 3))


def butterfly(pen: Pen, c: Shades) -> None:
    for side in (-1, 1):
        pen.blob(
            c.base, (50 + 3 * side, 50), (50 + 8 * side, 30), (50 + 28 * side, 10), (50 + 45 * side, 14),
            (50 + 44 * side, 38), (50 + 26 * side, 54),
        )  # fmt: skip
        pen.blob(
            c.base, (50 + 3 * side, 52), (50 + 28 * side, 56), (50 + 38 * side, 70), (50 + 26 * side, 90),
            (50 + 9 * side, 78),
        )  # fmt: skip
        pen.oval(c.light, 50 + 31 * side, 28, 9, 8)
        pen.oval(c.dark, 50 + 31 * side, 28, 4.5, 4)
        pen.disc(c.dark, 50 + 24 * side, 71, 5)
        pen.curve(_INK, 1.8, (50, 32), (50 + 5 * side, 18), (50 + 14 * side, 12))
        pen.disc(_INK, 50 + 14 * side, 12, 2.4)
    pen.oval(_INK, 50, 55, 4.2, 26)
    pen.disc(_INK, 50, 30, 5.4)


def truck(pen: Pen, c: Shades) -> None:
    pen.box(_DARK_STEEL, 4, 72, 94, 82)
    pen.box(c.base, 2, 20, 62, 74, 2)  # load
    for x in (14, 26, 38, 50):
        pen.stroke(c.dark, 1.8, (x, 25), (x, 69))
    pen.blob(c.base, (65, 36), (82, 36), (90, 54), (97, 60), (97, 80), (65, 80))
    pen.poly(_GLASS, (71, 42), (81, 42), (87, 55), (71, 55))
    pen.box(c.dark, 65, 72, 97, 80)
    pen.oval(_LAMPLIGHT, 95, 66, 2.4, 3.4)
    for x in (16, 38, 80):
        pen.disc(_TYRE, x, 83, 11)
        pen.disc(_STEEL, x, 83, 5)


def bed(pen: Pen, c: Shades) -> None:
    wood: RGB = (150, 104, 64)
    pen.box(wood, 3, 18, 11, 94, 2)
    pen.box(wood, 90, 46, 98, 94, 2)
    pen.box(wood, 8, 78, 94, 87)
    pen.box((246, 246, 250), 10, 58, 90, 79, 3)
    pen.blob((246, 246, 250), (12, 58), (13, 41), (32, 40), (36, 58))  # pillow
    pen.blob(c.base, (32, 56), (40, 40), (64, 38), (89, 43), (92, 62), (91, 84), (60, 87), (33, 85))
    pen.blob(c.light, (31, 56), (38, 42), (47, 39), (44, 60), (44, 86), (32, 85))
    for x in (58, 74):
        pen.curve(c.dark, 2.4, (x, 46), (x + 3, 62), (x, 80))


def clock(pen: Pen, c: Shades) -> None:
    pen.stroke(c.dark, 7, (28, 84), (20, 94))
    pen.stroke(c.dark, 7, (72, 84), (80, 94))
    pen.stroke(_DARK_STEEL, 4, (50, 20), (50, 6))
    pen.pie(c.base, 26, 22, 16, 14, 140, 320)  # bells
    pen.pie(c.base, 74, 22, 16, 14, 220, 400)
    pen.disc(c.base, 50, 55, 39)
    pen.disc(_CREAM, 50, 55, 24)
    for k in range(12):
        a = k * pi / 6
        pen.disc(_INK, 50 + 20 * cos(a), 55 + 20 * sin(a), 1.7 if k % 3 else 2.5)
    pen.stroke(_INK, 3, (50, 55), (50, 40))
    pen.stroke(_INK, 3, (50, 55), (61, 61))


def airplane(pen: Pen, c: Shades) -> None:
    pen.poly(c.dark, (44, 46), (60, 18), (70, 18), (64, 46))  # far wing
    pen.poly(c.base, (6, 48), (4, 20), (16, 20), (30, 46))  # fin
    pen.blob(c.base, (4, 46), (30, 41), (66, 40), (88, 43), (98, 52), (88, 61), (60, 64), (26, 60), (6, 52))
    pen.blob(_GLASS, (84, 45), (91, 46), (95, 51), (86, 52))
    for x in (34, 44, 54, 64, 74):
        pen.disc(_GLASS, x, 49, 3)
    pen.poly(c.dark, (40, 56), (62, 56), (42, 90), (30, 90))  # near wing
    pen.oval(_STEEL, 52, 72, 8, 4.4)
    pen.poly(c.dark, (6, 50), (18, 50), (8, 62), (1, 62))


def guitar(pen: Pen, c: Shades) -> None:
    pen.box((112, 72, 42), 46, 12, 54, 56)  # neck
    pen.poly((84, 54, 34), (42, 14), (40, 2), (60, 2), (58, 14))
    for y in (5, 10):
        pen.disc(_STEEL, 39, y, 2.8)
        pen.disc(_STEEL, 61, y, 2.8)
    pen.blob(c.base, *at("50,37 68,38 74,49 69,59 82,73 79,90 50,97 21,90 18,73 31,59 26,49 32,38"))  # fmt: skip
    pen.box((112, 72, 42), 46, 34, 54, 54)
    pen.disc(_WOOD, 50, 60, 10)
    pen.disc((50, 34, 24), 50, 60, 7.6)
    pen.box((84, 54, 34), 36, 80, 64, 86, 2)
    for x in (48, 52):
        pen.stroke((235, 235, 235), 0.9, (x, 12), (x, 82))


def rabbit(pen: Pen, c: Shades) -> None:
    for x, turn in ((38, -9), (62, 9)):
        pen.oval(c.base, x, 21, 8.5, 21, turn)
        pen.oval((246, 160, 176), x, 22, 4, 15, turn)
    pen.disc(c.light, 77, 82, 8)  # tail
    pen.blob(c.base, (36, 58), (64, 58), (75, 78), (70, 94), (30, 94), (25, 78))
    pen.oval(c.light, 50, 80, 12, 12)
    pen.oval(c.base, 33, 92, 12, 5)
    pen.oval(c.base, 67, 92, 12, 5)
    pen.oval(c.base, 50, 50, 24, 19)
    for x in (41, 59):
        pen.eye(x, 46, 4.6)
    pen.oval((240, 120, 140), 50, 53, 3.6, 2.6)
    pen.box(_WHITE, 46.4, 58, 53.6, 66)
    pen.stroke(_INK, 1, (50, 58), (50, 66))
    pen.curve(c.mark, 1.5, (41, 57), (46, 59), (50, 55), (54, 59), (59, 57))


def umbrella(pen: Pen, c: Shades) -> None:
    pen.curve((120, 80, 50), 4.6, (50, 50), (50, 84), (55, 94), (63, 93), (66, 84))
    pen.stroke(_DARK_STEEL, 3.4, (50, 8), (50, 3))
    pen.pie(c.base, 50, 52, 46, 45, 180, 360)
    for x in (19.5, 50, 80.5):
        pen.pie(c.base, x, 52, 15.6, 7, 0, 180)
    pen.pie(c.dark, 50, 52, 16, 45, 180, 360)
    pen.pie(c.dark, 50, 52, 15.6, 7, 0, 180)
    pen.arc(c.light, 3, 50, 52, 38, 37, 200, 238)


def candle(pen: Pen, c: Shades) -> None:
    pen.arc(_DARK_STEEL, 4.4, 84, 84, 9, 7, -160, 160)
    pen.oval(_DARK_STEEL, 50, 89, 36, 7)
    pen.oval(_STEEL, 50, 86, 36, 6.4)
    pen.box(c.base, 32, 38, 68, 88, 3)
    pen.oval(c.light, 50, 38, 18, 5)
    pen.blob(c.light, (33, 38), (44, 40), (43, 56), (39, 60), (36, 52))
    pen.blob(c.light, (56, 40), (64, 39), (63, 50), (59, 52))
    pen.box(c.dark, 61, 50, 68, 88)
    pen.stroke(_INK, 2, (50, 38), (50, 28))
    pen.blob(_FLAME, (50, 3), (59, 20), (57, 30), (50, 34), (43, 30), (41, 20))
    pen.blob((255, 244, 170), (50, 14), (54, 24), (50, 31), (46, 24))


def sailboat(pen: Pen, c: Shades) -> None:
    pen.stroke((120, 82, 52), 4, (48, 4), (48, 76))
    pen.poly(c.base, (52, 6), (90, 66), (52, 66))
    pen.poly(c.light, (44, 14), (44, 66), (14, 66))
    pen.stroke(c.dark, 2, (52, 48), (78, 48))
    pen.blob(c.base, (6, 73), (50, 74), (96, 72), (84, 90), (50, 93), (20, 90))
    pen.poly(_WHITE, (7, 72), (95, 71), (92, 78), (10, 78))


def elephant(pen: Pen, c: Shades) -> None:
    pen.curve(c.dark, 3.4, (8, 50), (3, 60), (4, 72))
    for x in (16, 30, 50, 63):
        pen.box(c.dark if x in (30, 50) else c.base, x - 7, 62, x + 7, 95, 3)
    pen.blob(c.base, (7, 54), (14, 30), (38, 22), (60, 26), (72, 44), (70, 72), (40, 76), (12, 74))
    pen.curve(c.base, 11, (84, 48), (92, 60), (90, 78), (96, 84))  # trunk
    pen.disc(c.base, 76, 38, 18)
    pen.blob(_CREAM, (80, 54), (88, 58), (95, 55), (90, 63), (80, 60))
    pen.blob(c.dark, (48, 26), (62, 18), (72, 28), (70, 50), (58, 60), (48, 48))  # ear
    pen.blob(c.light, (53, 30), (62, 24), (67, 32), (65, 46), (58, 52), (53, 44))
    pen.eye(82, 34, 3.4)


def strawberry(pen: Pen, c: Shades) -> None:
    pen.blob(c.base, *at("50,24 72,20 90,34 84,60 66,86 50,96 34,86 16,60 10,34 28,20"))
    for x, y in at("30,42 50,44 70,42 40,56 60,56 50,68 32,66 68,66 43,80 57,80 20,50 80,50"):
        pen.oval((255, 226, 130) if c.base[2] < 120 or c.base[0] < 200 else (120, 90, 40), x, y, 1.9, 3)
    pen.stroke(_LEAF, 4, (50, 20), (53, 6))
    pen.poly(_LEAF, *at("50,14 62,14 84,16 70,24 74,36 58,28 50,40 42,28 26,36 30,24 16,16 38,14"))


def castle(pen: Pen, c: Shades) -> None:
    pen.box(c.base, 22, 44, 78, 95)
    for x in (27, 43, 59):
        pen.box(c.base, x + 1, 37, x + 11, 48)
    for x in (5, 75):
        pen.box(c.base, x, 32, x + 20, 95)
        for k in range(3):
            pen.box(c.base, x - 2 + 9 * k, 24, x + 4 + 9 * k, 34)
        pen.box(c.dark, x - 2, 33, x + 22, 38)
        pen.box(c.mark, x + 7, 50, x + 13, 64, 3)
        pen.stroke(_DARK_STEEL, 1.8, (x + 10, 24), (x + 10, 5))
    pen.poly((220, 60, 60), (15, 5), (29, 9), (15, 14))
    pen.poly((220, 60, 60), (85, 5), (99, 9), (85, 14))
    pen.pie((96, 62, 38), 50, 78, 13, 16, 180, 360)
    pen.box((96, 62, 38), 37, 77, 63, 95)
    for x in (44, 50, 56):
        pen.stroke((60, 38, 24), 1.4, (x, 66), (x, 94))
    for x, y in ((30, 56), (64, 58), (70, 70), (28, 72)):
        pen.box(c.dark, x, y, x + 8, y + 4)


def sheep(pen: Pen, c: Shades) -> None:
    face: RGB = (58, 52, 54)
    for x in (26, 38, 58, 68):
        pen.box(face, x - 4, 70, x + 4, 95, 2)
    for x, y, r in (
        (22, 52, 15), (34, 38, 16), (52, 34, 16), (66, 42, 15), (70, 58, 14), (56, 68, 15), (38, 70, 15),
        (22, 64, 13), (46, 54, 22),
    ):  # fmt: skip
        pen.disc(c.base, x, y, r)
    for x, y in ((30, 50), (46, 44), (36, 64), (54, 60), (62, 50), (20, 60)):
        pen.arc(c.dark, 2.4, x, y, 6, 5, 0, 170)
    pen.oval(face, 70, 33, 9, 4.5, 25)
    pen.oval(face, 85, 42, 12, 15, -25)
    for x, y, r in ((76, 26, 7), (84, 25, 6), (80, 30, 6)):
        pen.disc(c.base, x, y, r)
    pen.eye(85, 38, 3.6)
    pen.stroke((220, 170, 170), 1.4, (92, 50), (87, 52))


def banana(pen: Pen, c: Shades) -> None:
    pen.blob(c.base, *at("80,10 88,9 93,32 88,58 70,80 44,91 18,88 8,79 18,73 40,72 60,60 74,40 79,22"))  # fmt: skip
    pen.curve(c.dark, 3, (86, 16), (85, 40), (72, 64), (48, 80), (20, 82))
    pen.poly((96, 70, 40), (78, 12), (80, 3), (88, 3), (89, 12))
    pen.poly((70, 50, 32), (7, 82), (4, 76), (10, 73), (15, 76))


def owl(pen: Pen, c: Shades) -> None:
    pen.stroke((120, 80, 48), 6, (8, 92), (92, 92))  # branch
    pen.blob(c.base, *at("26,24 18,4 38,13 62,13 82,4 74,24 80,56 70,86 50,92 30,86 20,56"))
    pen.oval(c.light, 50, 66, 18, 22)
    for y in (58, 68, 78):
        for x in (42, 50, 58):
            pen.arc(c.dark, 1.8, x, y, 3.4, 3, 0, 180)
    pen.blob(c.dark, (24, 44), (33, 54), (34, 74), (27, 82), (19, 62))
    pen.blob(c.dark, (76, 44), (67, 54), (66, 74), (73, 82), (81, 62))
    for x in (36, 64):
        pen.disc(c.dark, x, 32, 15.5)
        pen.disc(_WHITE, x, 32, 12)
        pen.disc((240, 180, 40), x, 32, 8)
        pen.disc(_INK, x, 32, 5)
    pen.poly(_BEAK, (45, 38), (55, 38), (50, 49))
    for x in (40, 60):
        pen.stroke(_BEAK, 3, (x - 3, 91), (x - 3, 94))
        pen.stroke(_BEAK, 3, (x + 3, 91), (x + 3, 94))


def key(pen: Pen, c: Shades) -> None:
    pen.arc(c.base, 12, 24, 44, 17, 17, 0, 360)
    pen.box(c.base, 38, 38, 97, 50, 2)
    pen.box(c.base, 70, 46, 79, 68, 1)
    pen.box(c.base, 86, 46, 95, 72, 1)
    pen.stroke(c.dark, 2.6, (44, 47.5), (94, 47.5))
    pen.arc(c.light, 2.6, 24, 44, 18.5, 18.5, 190, 280)
    pen.disc(c.base, 24, 25, 6)


def mushroom(pen: Pen, c: Shades) -> None:
    pen.blob(_CREAM, (38, 52), (62, 52), (62, 72), (68, 90), (50, 95), (32, 90), (38, 72))
    pen.oval((226, 208, 176), 50, 56, 30, 8)
    pen.blob(c.base, *at("5,52 12,30 32,10 50,6 68,10 88,30 95,52 80,60 50,55 20,60"))
    dots = c.dark if c.base[2] > 240 and c.base[0] > 240 else _WHITE
    for x, y, r in ((34, 27, 7), (60, 20, 6), (76, 38, 7.5), (52, 42, 7.5), (22, 46, 5.5)):
        pen.oval(dots, x, y, r, r * 0.8)


def pencil(pen: Pen, c: Shades) -> None:
    # Drawn along the diagonal: (1, -1) / sqrt 2 is forwards.
    def at(along: float, across: float) -> tuple[float, float]:
        return (6 + 0.7071 * (along + across) + 4, 94 - 0.7071 * (along - across) - 4)

    def band(fill: RGB, start: float, end: float, low: float, high: float) -> None:
        pen.poly(fill, at(start, low), at(end, low), at(end, high), at(start, high))

    pen.poly((236, 200, 150), at(0, 0), at(22, -11), at(22, 11))
    pen.poly(_INK, at(0, 0), at(8, -4), at(8, 4))
    band(c.base, 22, 96, -11, 11)
    band(c.light, 22, 96, -11, -7)
    band(c.dark, 22, 96, 7, 11)
    band(_STEEL, 96, 104, -11, 11)
    band((244, 150, 160), 104, 116, -11, 11)


def turtle(pen: Pen, c: Shades) -> None:
    pen.poly(c.light, (10, 78), (2, 84), (16, 84))
    for x in (26, 66):
        pen.box(c.light, x - 8, 74, x + 8, 93, 5)
    pen.blob(c.light, (70, 72), (78, 52), (86, 44), (97, 50), (96, 62), (84, 68), (80, 80))  # head
    pen.eye(89, 52, 3.6)
    pen.stroke(c.mark, 1.6, (96, 60), (89, 61))
    pen.pie(c.base, 44, 76, 36, 44, 180, 360)
    pen.box(c.dark, 6, 73, 82, 81, 4)
    pen.poly(c.dark, (44, 40), (56, 48), (52, 62), (36, 62), (32, 48))
    pen.stroke(c.dark, 2.8, (44, 40), (44, 34))
    pen.stroke(c.dark, 2.8, (56, 48), (68, 46))
    pen.stroke(c.dark, 2.8, (32, 48), (20, 46))
    pen.stroke(c.dark, 2.8, (52, 62), (58, 74))
    pen.stroke(c.dark, 2.8, (36, 62), (30, 74))


def teapot(pen: Pen, c: Shades) -> None:
    pen.arc(c.base, 6, 20, 56, 16, 18, 80, 280)  # handle
    pen.blob(c.base, (68, 60), (80, 48), (86, 34), (97, 32), (92, 44), (86, 68), (70, 80))  # spout
    pen.box(c.dark, 32, 86, 68, 95, 3)
    pen.oval(c.base, 48, 62, 32, 29)
    pen.pie(c.dark, 48, 38, 20, 9, 180, 360)
    pen.box(c.dark, 26, 36, 70, 41, 2)
    pen.disc(c.base, 48, 24, 6)
    pen.arc(c.light, 4, 48, 62, 23, 20, 190, 240)


def hammer(pen: Pen, c: Shades) -> None:
    pen.box(c.base, 38, 24, 62, 97, 7)
    for y in (66, 76, 86):
        pen.stroke(c.dark, 3, (43, y), (57, y))
    pen.poly(_DARK_STEEL, (36, 9), (64, 9), (64, 28), (36, 28))
    pen.box(_DARK_STEEL, 60, 11, 76, 27)
    pen.box(_STEEL, 74, 7, 87, 31, 3)
    pen.blob(_DARK_STEEL, (40, 9), (25, 9), (11, 22), (9, 33), (24, 23), (40, 27))
    pen.poly(_STEEL, (42, 11), (72, 11), (72, 16), (42, 16))


def cactus(pen: Pen, c: Shades) -> None:
    pen.curve(c.base, 13, (52, 58), (74, 56), (78, 44), (78, 32))
    pen.curve(c.base, 13, (48, 66), (27, 63), (22, 52), (22, 42))
    pen.box(c.base, 37, 5, 63, 80, 13)
    for x in (44, 50, 56):
        pen.stroke(c.dark, 2, (x, 14), (x, 72))
    for x, y in ((40, 24), (60, 34), (40, 46), (60, 58), (78, 38), (22, 48), (50, 20), (50, 40)):
        pen.stroke(_CREAM, 1.4, (x - 2.4, y - 1.6), (x + 2.4, y + 1.6))
    pen.poly((188, 104, 66), (30, 76), (70, 76), (65, 96), (35, 96))
    pen.box((204, 120, 80), 27, 72, 73, 80, 2)


def helicopter(pen: Pen, c: Shades) -> None:
    pen.stroke(_DARK_STEEL, 3, (30, 88), (84, 88), (90, 84))
    pen.stroke(_DARK_STEEL, 2.6, (44, 74), (42, 88))
    pen.stroke(_DARK_STEEL, 2.6, (68, 74), (70, 88))
    pen.poly(c.base, (4, 42), (44, 46), (44, 60), (6, 50))  # tail
    pen.poly(c.base, (2, 30), (10, 30), (14, 46), (4, 48))
    pen.arc(_DARK_STEEL, 2, 7, 38, 9, 9, 0, 360)
    pen.blob(c.base, (32, 54), (42, 36), (64, 32), (86, 40), (94, 60), (84, 74), (58, 78), (38, 72))
    pen.blob(_GLASS, (66, 38), (82, 42), (90, 58), (78, 60), (66, 58))
    pen.box(_GLASS, 48, 42, 60, 56, 3)
    pen.stroke(c.dark, 3, (38, 67), (88, 67))
    pen.box(_DARK_STEEL, 56, 20, 62, 34)
    pen.stroke(_INK, 3.6, (16, 19), (98, 19))


def carrot(pen: Pen, c: Shades) -> None:
    for dx, tip in ((-4, (52, 6)), (0, (74, 4)), (4, (92, 14)), (2, (96, 34))):
        near, far = ((62 + tip[0]) / 2 - 5, (34 + tip[1]) / 2 - 3), ((68 + tip[0]) / 2 + 5, (38 + tip[1]) / 2 + 3)
        pen.blob(_LEAF, (62 + dx, 34), near, tip, far)
    pen.blob(c.base, (56, 30), (70, 32), (74, 46), (60, 66), (34, 88), (6, 96), (16, 72), (34, 44))
    for x, y in ((52, 44), (40, 58), (48, 66), (28, 72), (62, 50)):
        pen.stroke(c.dark, 2.4, (x, y), (x + 8, y + 6))


def giraffe(pen: Pen, c: Shades) -> None:
    pen.curve(c.dark, 2.6, (16, 62), (10, 70), (11, 80))
    for x in (22, 32, 48, 57):
        pen.box(c.dark if x in (32, 48) else c.base, x - 3.6, 68, x + 3.6, 96, 2)
    pen.blob(c.base, (14, 62), (24, 52), (44, 52), (54, 46), (62, 58), (60, 74), (36, 76), (18, 74))
    pen.poly(c.base, (46, 58), (63, 14), (76, 18), (62, 64))  # neck
    pen.stroke(c.dark, 3, (66, 12), (65, 3))
    pen.stroke(c.dark, 3, (72, 12), (73, 3))
    pen.disc(c.dark, 65, 3.4, 2.6)
    pen.disc(c.dark, 73, 3.4, 2.6)
    pen.oval(c.dark, 59, 15, 6, 3, 20)
    pen.blob(c.base, (60, 14), (70, 8), (82, 13), (95, 24), (92, 31), (80, 29), (66, 27))
    for x, y, r in (
        (26, 61, 4.6), (38, 60, 4.6), (48, 66, 4.4), (30, 70, 3.6), (56, 52, 3.6), (60, 41, 3.4), (66, 31, 3.2),
        (40, 70, 3.4),
    ):  # fmt: skip
        pen.oval(c.dark, x, y, r, r * 0.85, 20)
    pen.eye(76, 17, 3.2)
    pen.stroke(c.mark, 1.4, (92, 27), (84, 26))


def rocket(pen: Pen, c: Shades) -> None:
    pen.blob((255, 140, 30), (40, 80), (60, 80), (56, 92), (50, 99), (44, 92))
    pen.blob((255, 224, 90), (45, 80), (55, 80), (53, 88), (50, 93), (47, 88))
    pen.poly(c.dark, (34, 54), (16, 74), (18, 88), (36, 76))
    pen.poly(c.dark, (66, 54), (84, 74), (82, 88), (64, 76))
    pen.blob(c.base, (50, 2), (64, 20), (69, 44), (66, 68), (60, 82), (40, 82), (34, 68), (31, 44), (36, 20))
    pen.blob(c.dark, (50, 2), (60, 13), (63.5, 22), (50, 25), (36.5, 22), (40, 13))
    pen.disc(_STEEL, 50, 40, 10)
    pen.disc(_GLASS, 50, 40, 7.4)
    pen.stroke(c.light, 3, (39, 54), (40, 68))
    pen.box(_DARK_STEEL, 38, 78, 62, 84, 2)


def octopus(pen: Pen, c: Shades) -> None:
    legs = (
        ((30, 58), (12, 66), (4, 84), (12, 90)),
        ((38, 62), (26, 78), (22, 94), (12, 96)),
        ((46, 64), (42, 84), (42, 94), (34, 96)),
        ((54, 64), (58, 84), (58, 94), (66, 96)),
        ((62, 62), (74, 78), (78, 94), (88, 96)),
        ((70, 58), (88, 66), (96, 84), (88, 90)),
    )
    for leg in legs:
        pen.curve(c.base, 9.5, *leg)
    pen.blob(c.base, (26, 56), (18, 34), (30, 10), (50, 4), (70, 10), (82, 34), (74, 56), (66, 70), (34, 70))
    for x in (39, 61):
        pen.eye(x, 40, 8)
    pen.arc(c.mark, 2.2, 50, 52, 8, 6, 20, 160)
    for x, y in ((36, 18), (50, 14), (62, 20)):
        pen.disc(c.light, x, y, 3.4)


def snail(pen: Pen, c: Shades) -> None:
    pen.stroke(_SKIN, 3.4, (82, 58), (80, 34))
    pen.stroke(_SKIN, 3.4, (88, 58), (94, 36))
    pen.disc(_INK, 80, 33, 3.4)
    pen.disc(_INK, 94, 35, 3.4)
    pen.blob(_SKIN, *at("3,93 22,80 60,82 74,74 76,56 88,50 97,60 95,82 82,95 40,95"))
    pen.stroke((150, 110, 80), 1.8, (95, 70), (88, 72))
    pen.disc(c.base, 42, 52, 36)
    spiral = [(42 + (30 - 2.1 * k) * cos(0.5 + 0.62 * k), 52 + (30 - 2.1 * k) * sin(0.5 + 0.62 * k)) for k in range(14)]
    pen.curve(c.dark, 4.6, *spiral)


DRAWINGS: dict[str, Callable[[Pen, Shades], None]] = {
    drawing.__name__: drawing
    for drawing in (
        dog, car, cat, house, flower, tree, shirt, bird, chair, apple, book, sofa, hat, bus, fish, lamp,
        bicycle, bottle, mug, butterfly, truck, bed, clock, airplane, guitar, rabbit, umbrella, candle,
        sailboat, elephant, strawberry, castle, sheep, banana, owl, key, mushroom, pencil, turtle, teapot,
        hammer, cactus, helicopter, carrot, giraffe, rocket, octopus, snail,
    )
}  # fmt: skip
