package etcdtest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// A watch whose connections are cut again and again hints every change once it is connected, because
// it goes on after the last revision that it has delivered.
//
// Proves SCOPE-13.
func TestWatchIsResumed(t *testing.T) {
	location := place(t, 1)
	direct, err := open(location)
	require.NoError(t, err)
	defer direct.Close()
	through := link(t, location)
	watched, err := open(through.Location)
	require.NoError(t, err)
	defer watched.Close()

	var mu sync.Mutex // protects hinted
	hinted := map[persist.Key]uint64{}
	began, ended := make(chan struct{}, 1), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		ended <- watched.(persist.Watcher).Watch(ctx, func(h persist.Hint) {
			if (h == persist.Hint{}) {
				select {
				case began <- struct{}{}:
				default:
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			hinted[h.Key] = max(hinted[h.Key], h.Version)
		})
	}()
	<-began
	const changes = 200
	for i := range changes {
		_, err := direct.Commit(t.Context(), persist.Commit{ID: fmt.Sprint("w.", i), Writes: []persist.Write{
			{Key: persist.Key{Kind: "k", ID: fmt.Sprint(i)}, Version: 1, Doc: []byte("1")},
		}})
		require.NoError(t, err)
		if i%20 == 10 {
			through.Cut()
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		mu.Lock()
		n := len(hinted)
		mu.Unlock()
		if n == changes {
			break
		}
		require.True(t, time.Now().Before(deadline), "%d of %d changes were hinted", n, changes)
		time.Sleep(time.Millisecond)
	}
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}
