package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// L1 lets 64 writers change one session. It counts the calls that return nil, and the updates that
// are present at the end. The difference is the number of lost updates.

// numbers is the session of L1 on one contender: a number for each name.
type numbers interface {
	add(ctx context.Context, name string) error // reads the number and writes one more
	set(ctx context.Context, name string) error // writes 1 and leaves other names alone
	all(ctx context.Context) (map[string]int64, error)
	close()
}

// lostWork is the work of each writer, and a function that counts the updates in the state.
type lostWork struct {
	name string
	// fast is the number of units per writer in memory, where a few units would end before all
	// writers have started. A quick run does a quarter of it.
	fast    int
	do      func(ctx context.Context, n numbers, writer, i int) error
	present func(all map[string]int64) int64
}

var lostWorks = []lostWork{
	{
		"increments of one counter", 1000,
		func(ctx context.Context, n numbers, _, _ int) error { return n.add(ctx, "counter") },
		func(all map[string]int64) int64 { return all["counter"] },
	},
	{
		"each writer its own keys", 100,
		func(ctx context.Context, n numbers, writer, i int) error {
			return n.set(ctx, fmt.Sprintf("k%d_%d", writer, i))
		},
		func(all map[string]int64) int64 { return int64(len(all)) },
	},
}

var lostStores = []string{"memory", "SQLite", "PostgreSQL"}

// lostSides are the contenders, Pawl first.
var lostSides = []struct {
	name string
	open func(b *bench, store string) (numbers, error)
}{
	{"Pawl", openPawlNumbers},
	{"ADK-Go", openADK},
	{"get-then-set", openGetSet},
}

func l1(b *bench) error {
	for _, work := range lostWorks {
		for _, store := range lostStores {
			l := load{writers: 64, each: b.pick(10, 2)}
			if store == "memory" {
				l.each = b.pick(work.fast, work.fast/4)
			}
			var all []measured
			for _, s := range lostSides {
				m, err := b.once(work.on(s.name, store, s.open), l)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", work.name, store, err)
				}
				all = append(all, m)
			}
			b.lostRows(work.name, store, l.writers, all)
		}
	}
	return nil
}

func (w lostWork) on(name, store string, open func(*bench, string) (numbers, error)) side {
	return side{name, func(b *bench, _ load) (*instance, error) {
		n, err := open(b, store)
		if err != nil {
			return nil, err
		}
		return &instance{
			do: func(ctx context.Context, writer, i int) error { return w.do(ctx, n, writer, i) },
			present: func(ctx context.Context) (int64, error) {
				all, err := n.all(ctx)
				return w.present(all), err
			},
			close: n.close,
		}, nil
	}}
}

// lostRows adds a row for each peer, from the results of all sides.
func (b *bench) lostRows(work, store string, writers int, all []measured) {
	ours := &all[0]
	for i, s := range lostSides[1:] {
		peer := &all[i+1]
		r := Row{
			ID: b.chapter, Work: work, Store: store, Writers: writers, Unit: "lost updates",
			Ours: float64(ours.lost), Lost: ours.lost, Failures: ours.failed, Acknowledged: ours.acknowledged,
			Peer: float64(peer.lost), PeerLost: peer.lost, PeerFailures: peer.failed, PeerAcknowledged: peer.acknowledged, PeerName: s.name,
			P50: micros(ours.latency.at(0.50)), P99: micros(ours.latency.at(0.99)), PeerP50: micros(peer.latency.at(0.50)), PeerP99: micros(peer.latency.at(0.99)),
		}
		r.judge(atMost(0), r.Ours, true)
		b.add(r)
	}
}

// writeLost writes the rows of L1 as a Markdown table into the folder, if there are any.
func writeLost(folder string, rows []Row) error {
	text := lostTable(rows)
	if text == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(folder, "lost.md"), []byte(text), 0o644)
}

func lostTable(rows []Row) string {
	peers := lostSides[1:]
	lines := map[string][]string{} // by work and store
	var order []string
	for _, r := range rows {
		if r.ID != "L1" {
			continue
		}
		line := r.Work + " | " + r.Store
		if lines[line] == nil {
			order = append(order, line)
			lines[line] = make([]string, 1+len(peers))
			lines[line][0] = lostCell(r.Acknowledged, r.Lost, r.Failures)
		}
		for i, p := range peers {
			if p.name == r.PeerName {
				lines[line][1+i] = lostCell(r.PeerAcknowledged, r.PeerLost, r.PeerFailures)
			}
		}
	}
	if len(order) == 0 {
		return ""
	}
	var text strings.Builder
	text.WriteString("| 64 writers | store |")
	for _, s := range lostSides {
		fmt.Fprintf(&text, " %s |", s.name)
	}
	text.WriteString("\n|---|---|" + strings.Repeat("---|", len(lostSides)) + "\n")
	for _, line := range order {
		fmt.Fprintf(&text, "| %s | %s |\n", line, strings.Join(lines[line], " | "))
	}
	return text.String()
}

// lostCell returns the results of one contender as text.
func lostCell(acknowledged, lost, failed int64) string {
	cell := thousands(int(acknowledged)) + " acknowledged, " + thousands(int(acknowledged-lost)) + " present"
	if lost > 0 {
		cell += ", **" + thousands(int(lost)) + " lost**"
	}
	if failed > 0 {
		cell += ", " + count(int(failed), "call") + " failed"
	}
	return cell
}

// onPawl keeps the session in a scope. add uses a function, set a data verb.
type onPawl struct {
	rt    *pawl.Runtime
	store persist.Store // nil: in memory
	scope pawl.Scope[pawlNumbers]
}

type pawlNumbers struct {
	Numbers map[string]int64 `json:"numbers"`
}

func openPawlNumbers(b *bench, store string) (numbers, error) {
	var (
		kept persist.Store
		kind = pawl.Kind[pawlNumbers]{Name: "numbers", InMemory: store == "memory"}
	)
	switch store {
	case "SQLite":
		path, err := b.folder()
		if err != nil {
			return nil, err
		}
		if kept, err = sqlite.Open(b.ctx, filepath.Join(path, "pawl.db"), sqlite.Config{}); err != nil {
			return nil, err
		}
	case "PostgreSQL":
		url, err := b.database()
		if err != nil {
			return nil, err
		}
		if kept, err = postgres.Open(b.ctx, url, postgres.Config{}); err != nil {
			return nil, err
		}
	}
	rt, err := pawl.Open(pawl.Config{Store: kept, Kinds: []pawl.AnyKind{kind}})
	if err != nil {
		return nil, err
	}
	return &onPawl{rt, kept, kind.Scope(rt, "shared")}, nil
}

func (p *onPawl) add(ctx context.Context, name string) error {
	_, err := p.scope.AtomicState(ctx, func(_ context.Context, s *pawlNumbers) error {
		if s.Numbers == nil {
			s.Numbers = map[string]int64{}
		}
		s.Numbers[name]++
		return nil
	})
	return err
}

func (p *onPawl) set(ctx context.Context, name string) error {
	_, err := p.scope.SetStateRecord(ctx, "numbers", name, 1)
	return err
}

func (p *onPawl) all(ctx context.Context) (map[string]int64, error) {
	s, err := p.scope.State(ctx)
	return s.Numbers, err
}

func (p *onPawl) close() {
	_ = p.rt.Close(context.Background())
	if p.store != nil {
		_ = p.store.Close()
	}
}
