//go:build unix

package batch_test

import (
	"net/url"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// A worker is paused after a call, for longer than its lease, and continues when another worker has
// the job and has done nothing yet. It stores no result and charges no item. Proves CANCEL-1.
func TestPausedWorker(t *testing.T) {
	refs := references(t)
	visits := []visit{{"complete", "called", 1}}
	id := visits[0].id()
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		store := stores.OpenFor(t, location)
		b := openBench(t, store, t.TempDir())
		p := block(t, "victim", location, b, visits)
		p.Pause(stores.Unlocked(store))
		var during batch.Progress
		var once sync.Once // on a busy machine the worker may lose its lease, and take the job again
		b.hook = func(point, _ string) {
			if point != "claimed" {
				return
			}
			once.Do(func() {
				p.Resume()
				p.Go()
				p.Wait()
				during = progress(t, b.queue(id), id)
			})
		}
		repeat(t, b, visits, refs)
		require.EqualValues(t, []int64{0, 5}, []int64{int64(during.Done), during.Charged}, "%+v", during)
		info, err := os.Stat(b.image("batch.complete.item/" + url.QueryEscape(id) + "/00000000"))
		require.NoError(t, err)
		require.EqualValues(t, 2, info.Size(), "calls")
	})
}

// A process is paused at each point of the protocol for longer than its leases, while another one
// repeats the operations. When it continues, its commits are refused, and the end, the totals, the
// balance and the images stay as they are. Proves CANCEL-1, CANCEL-2, CANCEL-3.
func TestPausedAtEveryPoint(t *testing.T) {
	refs := references(t)
	visits := slices.DeleteFunc(matrix(refs, false), func(v visit) bool {
		// The next step is a call, which no lease guards: it may make an image after the teardown.
		return v.Point == "charged" && refs[v.Operation].outcome.Progress.Status == batch.Canceled
	})
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		store := stores.OpenFor(t, location)
		b := openBench(t, store, t.TempDir())
		p := block(t, "sleeper", location, b, visits)
		p.Pause(stores.Unlocked(store))
		repeat(t, b, visits, refs)
		versions := func() (all []uint64) {
			for _, v := range visits {
				r, err := store.Load(t.Context(), persist.Key{Kind: "batch." + b.queueName(v.id()), ID: v.id()})
				require.NoError(t, err)
				all = append(all, r.Version)
			}
			return all
		}
		before := versions()
		p.Resume()
		p.Go()
		p.Wait()
		compare(t, b, visits, refs)
		require.Equal(t, before, versions())
	})
}
