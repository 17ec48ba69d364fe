package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// plots has the plots of a run, by file. A plot without rows is "".
var plots = map[string]func(rows []Row) string{
	"throughput-memory.svg":   plotMemory,
	"throughput-postgres.svg": plotPostgres,
	"latency.svg":             plotLatency,
	"conflicts.svg":           plotConflicts,
	"growth.svg":              plotGrowth,
}

// writePlots writes the plots of a run into the folder. A plot without rows leaves its file unchanged.
func writePlots(folder string, rows []Row) error {
	for name, plot := range plots {
		if text := plot(rows); text != "" {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

func having(rows []Row, want func(r *Row) bool) (found []Row) {
	for _, r := range rows {
		if want(&r) {
			found = append(found, r)
		}
	}
	return found
}

// lines collects series in the order of their first points. It ignores a second point at the same x,
// and points that a logarithmic axis cannot show.
type lines struct{ all []series }

func (l *lines) add(name string, x, y float64) {
	if x <= 0 || y <= 0 {
		return
	}
	i := slices.IndexFunc(l.all, func(s series) bool { return s.name == name })
	if i < 0 {
		i = len(l.all)
		l.all = append(l.all, series{name: name})
	}
	s := &l.all[i]
	if !slices.ContainsFunc(s.points, func(p point) bool { return p.x == x }) {
		s.points = append(s.points, point{x, y})
	}
}

// plotMemory draws a panel for each shape of state. The name of a work is "shape, verb".
func plotMemory(rows []Row) string {
	rows = having(rows, func(r *Row) bool { return r.ID == "W1" && r.Unit == "ops/s" })
	var shapes []string
	found := map[string]*lines{}
	for _, r := range rows {
		shape, verb, _ := strings.Cut(r.Work, ", ")
		if found[shape] == nil {
			shapes = append(shapes, shape)
			found[shape] = &lines{}
		}
		found[shape].add("Pawl, "+verb, float64(r.Writers), r.Ours)
		found[shape].add(r.PeerName, float64(r.Writers), r.Peer)
	}
	var panels []panel
	for _, shape := range shapes {
		if len(found[shape].all) > 0 {
			panels = append(panels, panel{shape + ": operations per second", "writers", found[shape].all, short})
		}
	}
	if len(panels) == 0 {
		return ""
	}
	return lineChart("In memory: one container, many writers", panels)
}

func plotPostgres(rows []Row) string {
	var l lines
	for _, r := range rows {
		if r.ID == "W2" && r.Unit == "ops/s" && r.Store == "PostgreSQL" && r.Work == "one hot row" {
			l.add("Pawl", float64(r.Writers), r.Ours)
			l.add(r.PeerName, float64(r.Writers), r.Peer)
		}
	}
	if len(l.all) == 0 {
		return ""
	}
	return lineChart("PostgreSQL: one row, many writers", []panel{{"operations per second", "writers", l.all, short}})
}

// groups collects bars by work, store and number of writers, in the order of their first bars. It
// ignores a second bar of the same contender.
type groups struct{ all []group }

func (g *groups) add(r *Row, b bar) {
	title := r.Work + ", " + r.Store + ", " + count(r.Writers, "writer")
	i := slices.IndexFunc(g.all, func(g group) bool { return g.title == title })
	if i < 0 {
		i = len(g.all)
		g.all = append(g.all, group{title: title})
	}
	bars := &g.all[i].bars
	if !slices.ContainsFunc(*bars, func(o bar) bool { return o.name == b.name }) {
		*bars = append(*bars, b)
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

func plotLatency(rows []Row) string {
	var g groups
	for _, r := range rows {
		if r.ID != "P1" && r.ID != "W2" || r.Unit != "ops/s" || r.P50 <= 0 || r.PeerP50 <= 0 {
			continue
		}
		g.add(&r, bar{"Pawl", 1e3 * r.P50, 1e3 * r.P99})
		g.add(&r, bar{r.PeerName, 1e3 * r.PeerP50, 1e3 * r.PeerP99})
	}
	if len(g.all) == 0 {
		return ""
	}
	return barChart("How long a unit takes", "● median   ○ 99th percentile", true, g.all, lasting)
}

func plotConflicts(rows []Row) string {
	var g groups
	for _, r := range rows {
		if r.Unit == "conflicts/op" {
			g.add(&r, bar{name: "Pawl", value: r.Ours})
			g.add(&r, bar{name: r.PeerName, value: r.Peer})
		}
	}
	if len(g.all) == 0 {
		return ""
	}
	return barChart("Conflicts", "lost tries for each acknowledged unit", false, g.all, short)
}

// plotGrowth draws time and memory over size, with the exponent of each line: 0 is flat, 1 is
// proportional.
func plotGrowth(rows []Row) string {
	kinds := []struct {
		title, across string
		value         func(float64) string
		want          func(r *Row) bool
	}{
		{"Time of one verb, beside or to a list", "items in the list", lasting, func(r *Row) bool { return r.ID == "G1" }},
		{"Time of one append to a conversation", "messages", lasting, func(r *Row) bool { return r.ID == "G3" }},
		{"Time of one verb on a large document", "bytes", lasting, func(r *Row) bool { return r.ID == "W4" && strings.Contains(r.Work, "bytes") }},
		{"Time of one verb among many", "scopes or watchers", lasting, func(r *Row) bool {
			return r.ID == "G2" || r.ID == "W4" && !strings.Contains(r.Work, "bytes")
		}},
		{"Bytes of each scope", "scopes", short, func(r *Row) bool { return r.ID == "G2" }},
	}
	var panels []panel
	for _, k := range kinds {
		unit := "ns/op"
		if k.across == "scopes" {
			unit = "bytes/scope"
		}
		var l lines
		for _, r := range having(rows, func(r *Row) bool { return r.Size > 0 && r.Unit == unit && k.want(r) }) {
			name := strings.TrimSuffix(strings.Replace(r.Work, thousands(int(r.Size)), "n", 1), ": n")
			if r.Store != "memory" {
				name += ", " + r.Store
			}
			l.add(name, r.Size, r.Ours)
		}
		for i := range l.all {
			if s := &l.all[i]; unit == "ns/op" && len(s.points) > 1 {
				s.name += fmt.Sprintf(": n^%.2f", slope(s.points))
			}
		}
		if len(l.all) > 0 {
			panels = append(panels, panel{k.title, k.across, l.all, k.value})
		}
	}
	if len(panels) == 0 {
		return ""
	}
	return lineChart("What grows with n", panels)
}

// slope returns the exponent of a line.
func slope(points []point) float64 {
	var sizes []int
	var costs []float64
	for _, p := range points {
		sizes, costs = append(sizes, int(p.x)), append(costs, p.y)
	}
	return exponent(sizes, costs)
}
