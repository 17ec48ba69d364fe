package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/idempotency"
)

// P8 and P9 measure work that is claimed, done and recorded, so that it is done once: requests with
// an idempotency key, steps of a status machine, and calls that are admitted one at a time. The work
// itself does nothing. The peers claim and record by hand: see peer_claims.go.

// claims is a contender of P8 and P9.
type claims struct {
	// do does one unit; nil means that its outcome is recorded. The i-th unit of a writer follows its
	// units before.
	do func(ctx context.Context, writer, i int) error
	// recorded returns the number of units that the store has recorded; nil: it records none.
	recorded func(ctx context.Context) (int64, error)
	close    func()
}

// claimed is a side of P8 and P9.
func claimed(name, store string, open func(b *bench, store string, writers int) (*claims, error)) side {
	return side{name, func(b *bench, l load) (*instance, error) {
		c, err := open(b, store, l.writers)
		if err != nil {
			return nil, err
		}
		return &instance{do: c.do, present: c.recorded, close: c.close}, nil
	}}
}

// p8 measures first requests with an idempotency key, by Do and through the middleware.
func p8(b *bench) error {
	for _, store := range []string{inPostgres, inSQLite} {
		for _, writers := range []int{1, 16} {
			for _, w := range []struct {
				work string
				ours func(b *bench, store string, writers int) (*claims, error)
				peer func(b *bench, store string, writers int) (*claims, error)
			}{{"idempotency.Do, first requests", openDo, openKeyClaims}, {"the middleware, first requests", openMiddleware, openKeyHandlers}} {
				err := b.runComparisons(comparison{
					work: w.work, store: store, load: load{writers: writers, lasts: b.lasting(1000, 150)},
					ours: claimed("Pawl", store, w.ours), peer: claimed(claimedKey, store, w.peer),
					goal: atLeast(0.7), flawless: true, times: b.pick(5, 1),
				})
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// p9 measures a step of a machine whose body does nothing, and a call that is admitted and does
// nothing. Each writer has an entity or a session of its own.
func p9(b *bench) error {
	for _, store := range []string{inPostgres, inSQLite} {
		for _, writers := range []int{1, 16} {
			l := load{writers: writers, lasts: b.lasting(1000, 150)}
			err := b.runComparisons(comparison{
				work: "machine.Fire, claimed", store: store, load: l, times: b.pick(5, 1), goal: atLeast(0.7), flawless: true,
				ours: claimed("Pawl", store, openFire), peer: claimed(claimedRow, store, openRowClaims),
			}, comparison{
				work: "flow.Do, admitted", store: store, load: l, times: b.pick(5, 1), goal: atLeast(0.7), flawless: true,
				ours: claimed("Pawl", store, openAdmitted), peer: claimed(claimedCall, store, openCallClaims),
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// openRuntime opens a runtime on a new store, with the zero Config of the store.
func openRuntime(b *bench, store string) (*pawl.Runtime, func(), error) {
	place, err := b.placeIn(store)
	if err != nil {
		return nil, nil, err
	}
	_, rt, closing, err := openStreams(b.ctx, place, nil)
	return rt, closing, err
}

// counting returns the number of documents of a kind that match.
func counting[T any](rt *pawl.Runtime, k pawl.Kind[T], match func(T) int64) func(ctx context.Context) (int64, error) {
	return func(ctx context.Context) (n int64, err error) {
		for s, err := range k.List(ctx, rt, pawl.Query{}) {
			if err != nil {
				return 0, err
			}
			n += match(s.State())
		}
		return n, nil
	}
}

func openDo(b *bench, store string, _ int) (*claims, error) {
	rt, closing, err := openRuntime(b, store)
	if err != nil {
		return nil, err
	}
	keys, err := idempotency.New(rt, idempotency.Config{})
	if err != nil {
		closing()
		return nil, err
	}
	return &claims{close: closing, do: func(ctx context.Context, writer, i int) error {
		op := idempotency.Op{Principal: "ann", Name: "order", Key: fmt.Sprintf("%d-%d", writer, i), Input: hello}
		_, replayed, err := idempotency.Do(ctx, keys, op, func(context.Context) (message, error) { return hello, nil })
		if err == nil && replayed {
			err = errStatus
		}
		return err
	}}, nil
}

func openMiddleware(b *bench, store string, _ int) (*claims, error) {
	e := &endpoint{close: func() {}}
	var err error
	if e.Handler, err = openKeys(b, store, e); err != nil {
		return nil, err
	}
	return &claims{close: e.close, do: e.first}, nil
}

// first sends a request with a new key.
func (e *endpoint) first(ctx context.Context, writer, i int) error {
	status, err := e.order(ctx, fmt.Sprintf("%d-%d", writer, i))
	if err == nil && status != http.StatusCreated {
		err = errStatus
	}
	return err
}

// door is the entity of the machine. Its steps lead from open to shut and back.
type door struct {
	Status string `json:"status"`
	Moves  int64  `json:"moves"`
}

var doors = pawl.Kind[door]{Name: "door", Label: "status"}

const doorWorkflow = `{
	"workflow": "door", "module": "bench", "entity_kind": "door", "initial_status": "open",
	"status_types": ["open", "shutting", "shut", "opening"],
	"steps": [
		{"step_id": 10, "step_key": "shut", "status": "open", "successful_claim_state": {"bench": ["shutting", "open"]}, "successful_state": {"bench": "shut"}, "action": {"bench": "Move"}},
		{"step_id": 20, "step_key": "open", "status": "shut", "successful_claim_state": {"bench": ["opening", "shut"]}, "successful_state": {"bench": "open"}, "action": {"bench": "Move"}}
	]
}`

func openFire(b *bench, store string, writers int) (*claims, error) {
	rt, closing, err := openRuntime(b, store)
	if err != nil {
		return nil, err
	}
	engine := machine.NewEngine(rt, machine.Config{Logger: slog.New(slog.DiscardHandler)})
	w, err := machine.Load([]byte(doorWorkflow))
	if err != nil {
		closing()
		return nil, err
	}
	m := machine.Add(engine, doors, w)
	machine.Handle(m, "Move", func(_ context.Context, a *machine.Action[door], _ machine.NoInput) error {
		a.OnCommit(func(_ context.Context, _ *pawl.Tx, d *door) error {
			d.Moves++
			return nil
		})
		return nil
	})
	engine.AddJanitor(machine.JanitorConfig{Module: "bench"})
	err = engine.Start(b.ctx)
	for writer := range writers {
		if err == nil {
			_, err = m.Create(b.ctx, fmt.Sprint(writer), door{})
		}
	}
	if err != nil {
		closing()
		return nil, err
	}
	return &claims{
		close: func() {
			_ = engine.Stop(context.Background())
			closing()
		},
		recorded: counting(rt, doors, func(d door) int64 { return d.Moves }),
		do: func(ctx context.Context, writer, i int) error {
			step := [2]string{"shut", "open"}[i%2]
			out, err := m.Fire(ctx, machine.Trigger{ID: fmt.Sprint(writer), Step: step, By: "bench"})
			if err == nil && out.Result != machine.Done {
				err = fmt.Errorf("%v: %v", out.Result, out.Reasons)
			}
			return err
		},
	}, nil
}

func openAdmitted(b *bench, store string, _ int) (*claims, error) {
	rt, closing, err := openRuntime(b, store)
	if err != nil {
		return nil, err
	}
	f, err := flow.New(rt, flow.Config{Kind: "call", Admit: flow.Queue, Per: flow.PerSession})
	if err != nil {
		closing()
		return nil, err
	}
	nothing := flow.Define(f, "nothing", func(context.Context, *flow.Call, int) (int, error) { return 0, nil })
	return &claims{
		close: func() {
			_ = f.Stop(context.Background())
			closing()
		},
		do: func(ctx context.Context, writer, i int) error {
			_, err := nothing.Do(ctx, flow.IDs{Session: fmt.Sprint(writer)}, i)
			return err
		},
	}, nil
}
