package etcdtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/etcd/etcdtest"
)

// A commit that insists and loses gets a turn. The commit that follows it removes the turn. So does
// one of another process, if the owner of the turn does not come back.
//
// Proves CAS-5.
func TestTurn(t *testing.T) {
	location := place(t, 1)
	one, err := open(location)
	require.NoError(t, err)
	defer one.Close()
	two, err := open(location)
	require.NoError(t, err)
	defer two.Close()
	client, err := etcdtest.NewClient(endpoints(t)...)
	require.NoError(t, err)
	defer client.Close()
	prefix, _, _ := strings.Cut(location, "@")
	turns := func() int64 {
		found, err := client.Get(t.Context(), prefix+"w\x00", clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(t, err)
		return found.Count
	}
	key := persist.Key{Kind: "k", ID: "1"}
	ids := 0
	commit := func(store persist.Store, expected uint64, insist bool) error {
		ids++
		_, err := store.Commit(t.Context(), persist.Commit{ID: fmt.Sprint("turn.", ids), Insist: insist, Writes: []persist.Write{
			{Key: key, Expected: expected, Version: expected + 1, Doc: []byte("1")},
		}})
		return err
	}
	held := func(err error) bool {
		conflict, ok := errors.AsType[*persist.Conflict](err)
		require.True(t, ok, "%v", err)
		return conflict.Held
	}
	require.NoError(t, commit(one, 0, false))
	require.NoError(t, commit(two, 1, false))
	require.False(t, held(commit(one, 1, false)))
	require.Zero(t, turns())

	require.NoError(t, commit(two, 2, false)) // so that what one knows is old
	require.True(t, held(commit(one, 2, true)))
	require.EqualValues(t, 1, turns())
	require.NoError(t, commit(one, 3, true), "the turn is that of this process")
	require.Zero(t, turns())

	require.NoError(t, commit(two, 4, false))
	require.True(t, held(commit(one, 4, true)))
	require.NoError(t, commit(two, 5, false), "the owner of the turn does not come back")
	require.Zero(t, turns())
	require.True(t, held(commit(one, 5, true)))
	require.NoError(t, commit(one, 6, true))
	require.Zero(t, turns())
}

// Two processes that write one record without a pause both get on, and count every increment.
//
// Proves CAS-5.
func TestTwoProcessesOnOneRecord(t *testing.T) {
	location := place(t, 1)
	key := persist.Key{Kind: "k", ID: "1"}
	const each = 60
	var all sync.WaitGroup
	for p := range 2 {
		store, err := open(location)
		require.NoError(t, err)
		defer store.Close()
		all.Go(func() {
			version, most := uint64(0), 0
			for n := range each {
				for losses := 0; ; losses++ {
					c := persist.Commit{ID: fmt.Sprintf("p%d.%d", p, n), Insist: losses > 0, Writes: []persist.Write{
						{Key: key, Expected: version, Version: version + 1, Doc: []byte("1")},
					}}
					_, err := store.Commit(context.Background(), c)
					if err == nil {
						version++
						most = max(most, losses)
						break
					}
					conflict, ok := errors.AsType[*persist.Conflict](err)
					if !ok {
						t.Error(err)
						return
					}
					version = conflict.Winners[0].Version
				}
			}
			t.Logf("process %d lost at most %d times in a row", p, most)
		})
	}
	all.Wait()
	store, err := open(location)
	require.NoError(t, err)
	defer store.Close()
	r, err := store.Load(t.Context(), key)
	require.NoError(t, err)
	require.EqualValues(t, 2*each, r.Version)
}
