package persisttest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) probing() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"versions of records in every state":     s.probe,
		"versions of many keys":                  s.probeMany,
		"versions of no keys, and after the end": s.probeEnds,
	}
}

// prober returns the store as a Prober.
func (f *fixture) prober() persist.Prober {
	f.Helper()
	prober, ok := f.store.(persist.Prober)
	if !ok {
		f.Skip("the store is not a persist.Prober")
	}
	return prober
}

// probe: Versions returns the version of a record that is alive, expired or deleted, and 0 for an
// absent key, not the floor.
//
// Proves SCOPE-13, STORE-2.
func (s suite) probe(t *testing.T) {
	f := s.fresh(t)
	prober := f.prober()
	f.must(create(key("present")))
	f.must(update(key("present"), 1))
	f.must(acquire(key("held"), 0, "me", time.Hour))
	f.expiring(key("expired"))
	keys := []persist.Key{key("present"), key("absent"), key("held"), key("expired"), key("purged"), key("present"), {Kind: "no kind", ID: "present"}}
	want := []uint64{2, 0, 1, 1, 0, 2, 0}
	if purger, ok := f.store.(persist.Purger); ok {
		w := create(key("purged"))
		w.Version = 41
		f.must(w)
		f.must(remove(key("purged"), 41))
		_, err := purger.Purge(t.Context(), persist.Query{})
		require.NoError(t, err)
	}
	deleted := create(key("deleted"))
	deleted.Version = 100
	f.must(deleted)
	f.must(remove(key("deleted"), 100))
	versions, err := prober.Versions(t.Context(), append(keys, key("deleted")))
	require.NoError(t, err)
	require.Equal(t, append(want, 101), versions)
}

// probeMany: Versions returns the versions in the order of the keys, also of keys that are named
// twice, while another goroutine writes.
//
// Proves SCOPE-13.
func (s suite) probeMany(t *testing.T) {
	f := s.fresh(t)
	prober := f.prober()
	const present, asked = 50, 2500
	for i := range present {
		w := create(key(fmt.Sprint(i)))
		w.Version = uint64(i + 1)
		f.must(w)
	}
	var keys []persist.Key
	for i := range asked {
		keys = append(keys, key(fmt.Sprint(i%(2*present))))
	}
	busy := key("busy")
	keys = append(keys, busy)
	var acked atomic.Uint64
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for version := uint64(0); ; version++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := f.write(update(busy, version)); err != nil {
				t.Error(err)
				return
			}
			acked.Store(version + 1)
		}
	})
	defer writing.Wait()
	defer close(stop)
	for range 3 {
		known := acked.Load()
		versions, err := prober.Versions(t.Context(), keys)
		require.NoError(t, err)
		require.Len(t, versions, len(keys))
		for i, version := range versions[:asked] {
			want := uint64(i%(2*present)) + 1
			if want > present {
				want = 0
			}
			require.Equal(t, want, version, "%s", keys[i])
		}
		require.GreaterOrEqual(t, versions[asked], known, "an acknowledged change is not seen")
	}
}

// Proves SCOPE-13.
func (s suite) probeEnds(t *testing.T) {
	f := s.fresh(t)
	prober := f.prober()
	versions, err := prober.Versions(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, versions)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = prober.Versions(ended, []persist.Key{thing})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, f.store.Close())
	_, err = prober.Versions(t.Context(), []persist.Key{thing})
	require.ErrorIs(t, err, persist.ErrClosed)
}
