package schedule_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/relay"
	"github.com/pawl-go/pawl/internal/schedule"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist/memory"
)

// Callers of one runtime change the same scopes in transactions, which share commits. In some
// schedules another process changes them, too. The faults and promises are those of TestStoredSchedules. Proves CAS-7,
// TX-1 and TX-7.
func TestGroupSchedules(t *testing.T) {
	n := testkit.Times(1000, 1000, "PAWL_SCHEDULES")
	shared.Store(0)
	total := schedule.Explore(t, n, groupScenario)
	require.NotZero(t, shared.Load(), "no transactions have shared a commit")
	testkit.Figures(t, "%d schedules of transactions that share commits, %d of them different, %d steps", total.Schedules, total.Different, total.Steps)
}

// shared is the least number of transactions that were acknowledged without a commit of their own.
var shared atomic.Int64

func groupScenario(s *schedule.Schedule) {
	w := &world{s: s}
	below := memory.New()
	faults := s.Random.IntN(3)
	var commits atomic.Int64
	faulty := w.hook("runtime", &faults)
	rt := w.open("runtime", pawl.Config{Store: relay.New(below, func(ctx context.Context, call relay.Call, next func(context.Context) error) error {
		if call.Commit != nil && len(call.Commit.Writes) > 0 {
			commits.Add(1)
		}
		return faulty(ctx, call, next)
	})})
	for c := range 3 + s.Random.IntN(3) {
		caller := fmt.Sprintf("caller %d", c+1)
		var plan []*op
		for i := range 1 + s.Random.IntN(2) {
			plan = append(plan, w.planTx(rt, fmt.Sprintf("op %d.%d", c+1, i+1), w.retry()))
		}
		s.Go(caller, func() { w.call(caller, plan) })
	}
	other := w.open("other", pawl.Config{Store: below})
	if s.Random.IntN(3) == 0 {
		plan := []*op{w.planTx(other, "op of the other", w.retry())}
		s.Go("other", func() { w.call("other", plan) })
	}
	s.Run()
	w.judgeStored(below)
	acked := int64(0)
	for _, o := range w.ops {
		if o.err == nil {
			acked++
		}
	}
	shared.Add(max(0, acked-commits.Load()-1)) // the commit of the other process is not counted
	w.close(rt)
	w.close(other)
}
