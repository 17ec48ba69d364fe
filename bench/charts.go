package main

import (
	"cmp"
	"slices"
	"strings"
)

// series is one line of a panel: the points of one contender.
type series struct {
	name   string
	points []point
}

// panel is a plot of lines over a common logarithmic axis.
type panel struct {
	title, across string
	series        []series
	value         func(float64) string // writes a value of the vertical axis
}

const (
	chartWidth  = 820.0
	margin      = 20.0
	panelHeight = 250.0
)

// palette gives each contender one colour in all panels of a chart. Pawl is blue.
type palette struct{ given map[string]string }

var (
	blues  = []string{"#0b5cd6", "#2a8fd0"}
	others = []string{"#c8450b", "#1a7f45", "#8a3fc4", "#9a6b00", "#c0267a", "#4f6272", "#0f8a8a", "#b3261e"}
)

func (p *palette) of(name string) string {
	if p.given == nil {
		p.given = map[string]string{}
	}
	if c, ok := p.given[name]; ok {
		return c
	}
	from, own := others, isPawl(name)
	if own {
		from = blues
	}
	n := 0
	for given := range p.given {
		if isPawl(given) == own {
			n++
		}
	}
	p.given[name] = from[n%len(from)]
	return p.given[name]
}

func isPawl(name string) bool { return strings.HasPrefix(name, "Pawl") }

// lineChart draws panels one below the other, with the name of each line at its end.
func lineChart(title string, panels []panel) string {
	colours := &palette{}
	d := &drawing{width: chartWidth, height: 50 + float64(len(panels))*panelHeight}
	d.text(margin, 30, "start", ink, 16, true, title)
	for i, p := range panels {
		p.draw(d, colours, 46+float64(i)*panelHeight)
	}
	return d.String()
}

func (p panel) draw(d *drawing, colours *palette, top float64) {
	var xs, ys []float64
	names := 0.0
	for _, s := range p.series {
		colours.of(s.name)
		names = max(names, textWidth(s.name, 11))
		for _, at := range s.points {
			xs, ys = append(xs, at.x), append(ys, at.y)
		}
	}
	slices.Sort(xs)
	xs = slices.Compact(xs)
	left, right := margin+52, chartWidth-margin-names-14
	bottom := top + panelHeight - 46
	y := decades(ys, bottom, top+28)
	x := axis{xs[0], xs[len(xs)-1], true, left, right}
	d.text(margin, top+12, "start", ink, 13, true, p.title)
	for _, v := range y.ticks() {
		d.line(left, y.at(v), right, y.at(v), grid, 1)
		d.text(left-6, y.at(v)+4, "end", grey, 11, false, p.value(v))
	}
	for _, v := range xs {
		d.line(x.at(v), bottom, x.at(v), bottom+4, grey, 1)
		d.text(x.at(v), bottom+17, "middle", grey, 11, false, whole(v))
	}
	d.line(left, bottom, right, bottom, grey, 1)
	d.text((left+right)/2, bottom+33, "middle", grey, 11, false, p.across)
	var ends []label
	for _, s := range slices.Backward(p.series) { // ours is the first, and is drawn last
		colour, width := colours.of(s.name), 1.6
		if isPawl(s.name) {
			width = 2.8
		}
		var at []point
		for _, q := range s.points {
			at = append(at, point{x.at(q.x), y.at(q.y)})
		}
		d.path(at, colour, width)
		for _, q := range at {
			d.dot(q.x, q.y, 2.6, colour, colour)
		}
		ends = append(ends, label{s.name, colour, at[len(at)-1].x, at[len(at)-1].y, 0})
	}
	for _, l := range apart(ends, top+24, bottom) {
		d.line(l.x+4, l.y, right+9, l.place, l.colour, 0.8)
		d.text(right+12, l.place+4, "start", l.colour, 11, isPawl(l.name), l.name)
	}
}

// label is the name of a line that ends at x, y. The name is written at the height place.
type label struct {
	name, colour string
	x, y, place  float64
}

// apart moves the labels so that they do not overlap. They stay near the ends of their lines, between
// top and bottom.
func apart(all []label, top, bottom float64) []label {
	const step = 14
	slices.SortStableFunc(all, func(a, b label) int { return cmp.Compare(a.y, b.y) })
	for i := range all {
		all[i].place = max(all[i].y, top)
		if i > 0 {
			all[i].place = max(all[i].place, all[i-1].place+step)
		}
	}
	for i := len(all) - 1; i >= 0; i-- {
		limit := bottom
		if i < len(all)-1 {
			limit = all[i+1].place - step
		}
		all[i].place = min(all[i].place, limit)
	}
	return all
}

// group has the bars of all contenders for one work.
type group struct {
	title string
	bars  []bar
}

// bar is the value of one contender, or a range from value to upTo.
type bar struct {
	name  string
	value float64
	upTo  float64
}

const barHeight = 17.0

// barChart draws groups of bars one below the other, on a common axis. With ranges the axis is
// logarithmic, and each range is a dot, a line and a ring.
func barChart(title, explained string, ranges bool, groups []group, value func(float64) string) string {
	colours := &palette{}
	names, height := 0.0, 84.0
	var values []float64
	for _, g := range groups {
		height += 26 + barHeight*float64(len(g.bars))
		for _, b := range g.bars {
			names = max(names, textWidth(b.name, 11))
			values = append(values, b.value, b.upTo)
		}
	}
	d := &drawing{width: chartWidth, height: height}
	d.text(margin, 30, "start", ink, 16, true, title)
	d.text(margin, 49, "start", grey, 12, false, explained)
	left, right := margin+names+10, chartWidth-margin-60
	x := axis{0, max(slices.Max(values), 1e-9), false, left, right}
	if ranges {
		x = decades(values, left, right)
	}
	top, bottom := 56.0, height-28
	for _, v := range x.ticks() {
		d.line(x.at(v), top, x.at(v), bottom, grid, 1)
		d.text(x.at(v), bottom+16, "middle", grey, 11, false, value(v))
	}
	y := top
	for _, g := range groups {
		d.text(margin, y+18, "start", ink, 12, true, g.title)
		y += 26
		for _, b := range g.bars {
			b.draw(d, x, y, left, colours.of(b.name), ranges, value)
			y += barHeight
		}
	}
	return d.String()
}

func (b bar) draw(d *drawing, x axis, y, left float64, colour string, ranges bool, value func(float64) string) {
	middle := y + barHeight/2
	d.text(left-8, middle+4, "end", colour, 11, isPawl(b.name), b.name)
	if !ranges {
		d.bar(left, y+3, max(x.at(b.value)-left, 1), barHeight-6, colour)
		d.text(x.at(b.value)+6, middle+4, "start", grey, 11, false, value(b.value))
		return
	}
	d.line(x.at(b.value), middle, x.at(b.upTo), middle, colour, 2)
	d.dot(x.at(b.value), middle, 3.5, colour, colour)
	d.dot(x.at(b.upTo), middle, 3.5, "#ffffff", colour)
	d.text(x.at(b.upTo)+8, middle+4, "start", grey, 11, false, value(b.upTo))
}
