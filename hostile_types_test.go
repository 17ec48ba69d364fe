package pawl_test

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// One caller's long backoff does not hold another. Proves CAS-3.
func TestBackoffIsEachCallersOwn(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := h.gate()
		first := push(s, "first")
		<-entered
		calm := push(s, "calm", pawl.WithRetry(pawl.Retry{First: 20 * time.Minute, Max: 20 * time.Minute, Within: time.Hour}))
		start := time.Now()
		quick := push(s, "quick")
		lose := 2 // the first is but a read
		h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			if lose > 0 {
				lose--
				h.foreign(t, s.Key(), 1)
			}
			return commit()
		}
		open()
		require.NoError(t, <-first)
		assert.NoError(t, <-quick)
		assert.LessOrEqual(t, time.Since(start), time.Second)
		<-calm
	})
}

var marshals atomic.Int64
var marshalLimit atomic.Int64

type moody struct{ N int }

func (m moody) MarshalJSON() ([]byte, error) {
	if marshals.Add(1) > marshalLimit.Load() && marshalLimit.Load() > 0 {
		panic("moody")
	}
	return json.Marshal(map[string]int{"n": m.N})
}
func (m *moody) UnmarshalJSON(b []byte) error {
	var x map[string]int
	err := json.Unmarshal(b, &x)
	m.N = x["n"]
	return err
}

type moodyState struct {
	M moody `json:"m"`
}
type plainState struct {
	M map[string]int `json:"m"`
}

// A type's own code does not run in the turn of another type's data verb. Proves SCOPE-5.
func TestOtherTypesCode(t *testing.T) {
	marshalLimit.Store(0)
	for limit := int64(1); limit < 12; limit++ {
		h := &hooked{Store: memory.New()}
		bubble(t, pawl.Config{Store: h}, func(t *testing.T, rt *pawl.Runtime) {
			marshalLimit.Store(0)
			a, b := pawl.Session[moodyState](rt, "a"), pawl.Session[plainState](rt, "a")
			_, err := b.SetStateRecord(t.Context(), "m", "n", 1)
			require.NoError(t, err)
			open, entered := h.gate()
			go b.IncState(context.Background(), "m.n", 1)
			<-entered
			resA, resB := make(chan any, 1), make(chan any, 1)
			go func() {
				defer func() { resA <- recover() }()
				a.AtomicState(context.Background(), func(context.Context, *moodyState) error { return nil })
			}()
			synctest.Wait()
			go func() {
				defer func() { resB <- recover() }()
				_, err := b.IncState(context.Background(), "m.n", 1)
				if err != nil {
					panic(err)
				}
			}()
			synctest.Wait()
			marshals.Store(0)
			marshalLimit.Store(limit)
			open()
			<-resA
			assert.Nil(t, <-resB, "limit %d", limit)
			marshalLimit.Store(0)
		})
	}
}

type custom struct {
	Tags []string
}

func (c custom) MarshalJSON() ([]byte, error) { return json.Marshal(map[string]any{"tags": c.Tags}) }
func (c *custom) UnmarshalJSON(b []byte) error {
	var x struct{ Tags []string }
	err := json.Unmarshal(b, &x)
	c.Tags = x.Tags
	return err
}

type withCustom struct {
	C    custom   `json:"c"`
	Done []string `json:"done"`
}

// What a data verb was given is copied before it returns, for a T with code of its own too. Proves SCOPE-6.
func TestValuesForACustomTypeAreCopied(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[withCustom](rt, "a")
		leaveThenChange(t, s)
		b, err := s.State(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{"given"}, b.Done)
	})
}
