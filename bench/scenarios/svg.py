"""Small SVG charts, after docs/reports/memory-waiting.svg: panels side by side, lines, one legend."""
import math

COLOURS = ("#0b6e4f", "#c1440e", "#3b5ba5", "#8c6bb1", "#b8860b")
WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 220, 50, 40, 40


def _text(x, y, anchor, text):
    text = str(text).replace("&", "&amp;").replace("<", "&lt;")
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{text}</text>"


def _step(most):
    """A round number of about a quarter of the range."""
    power = 10 ** math.floor(math.log10(most / 4))
    return next((f * power for f in (1, 2, 5) if f * power >= most / 4), 10 * power)


def _ticks(most):
    step = _step(most)
    return [step * i for i in range(int(most / step + 1e-9) + 1)]


class Panel:
    """`series`: {name: [(x, y)]}. `logarithmic`: powers of two along x."""

    def __init__(self, title, x_title, series, most=None, logarithmic=False, width=WIDTH):
        self.title, self.x_title, self.series, self.width = title, x_title, series, width
        self.logarithmic = logarithmic
        points = [point for line in series.values() for point in line]
        self.most_y = most or max([y for _, y in points] + [1e-9])
        self.most_x = max([x for x, _ in points] + [1e-9])

    def draw(self, left, colour_of):
        def x_of(x):
            if self.logarithmic:
                return left + self.width * math.log2(x) / max(1, math.log2(self.most_x))
            return left + self.width * x / self.most_x

        def y_of(y):
            return TOP + HEIGHT * (1 - min(y, self.most_y) / self.most_y)
        out = [_text(left, TOP - 12, "start", self.title)]
        for value in _ticks(self.most_y):
            out.append(f"<line x1='{left:.1f}' y1='{y_of(value):.1f}' x2='{left + self.width:.1f}' "
                       f"y2='{y_of(value):.1f}' stroke='#ddd'/>")
            out.append(_text(left - 6, y_of(value) + 4, "end", f"{value:g}"))
        along = [2 ** i for i in range(int(math.log2(self.most_x)) + 1)] if self.logarithmic \
            else _ticks(self.most_x)
        out += [_text(x_of(value), TOP + HEIGHT + 16, "middle", f"{value:g}") for value in along]
        out.append(_text(left + self.width / 2, TOP + HEIGHT + 34, "middle", self.x_title))
        for name, line in self.series.items():
            points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
            out.append(f"<polyline fill='none' stroke-width='2' stroke='{colour_of[name]}' points='{points}'/>")
        return out


def chart(panels):
    """The text of a picture of these panels. One name has one colour in all of them."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    colour_of = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    width = sum(panel.width + LEFT + GAP for panel in panels)
    height = TOP + HEIGHT + 80
    out = [f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
           "font-family='sans-serif' font-size='12'>", "<rect width='100%' height='100%' fill='white'/>"]
    left = LEFT
    for panel in panels:
        out += panel.draw(left, colour_of)
        left += panel.width + LEFT + GAP
    x = LEFT
    for name in names:
        out.append(f"<rect x='{x}' y='{height - 16}' width='16' height='3' fill='{colour_of[name]}'/>")
        out.append(_text(x + 22, height - 10, "start", name))
        x += 40 + 7 * len(name)
    return "\n".join(out) + "\n</svg>\n"
