package etcdtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/etcd"
)

// Etcd accepts the largest commit that the store sends, whatever makes it large: the number of keys,
// their indexes, or their documents. Every larger one is a *persist.LimitError and writes nothing.
//
// Proves STORE-16.
func TestLargestCommit(t *testing.T) {
	t.Parallel()
	store, err := open(place(t, 1))
	require.NoError(t, err)
	defer store.Close()
	most := store.(persist.Limiter).Limits().MaxKeys
	for _, n := range []int{1, 31, 32, most} {
		kind, number := fmt.Sprint("k", n), 0
		commit := func(expected uint64, spare int) error {
			number++
			c := persist.Commit{ID: fmt.Sprintf("%s.%d", kind, number)}
			for i := range n {
				c.Writes = append(c.Writes, persist.Write{
					Key:      persist.Key{Kind: kind, ID: fmt.Sprintf("%0100d", i)},
					Expected: expected, Version: expected + 1, Doc: []byte("1"), Label: strings.Repeat("l", int(expected)+1),
					Due: time.Unix(int64(expected), 0), TTL: time.Duration(expected+1) * time.Hour,
					EndLease: expected > 0, Acquire: &persist.Acquire{Holder: strings.Repeat("h", 100), For: time.Minute},
				})
			}
			c.Writes[0].Doc = fmt.Appendf(nil, "%q", strings.Repeat("x", spare))
			_, err := store.Commit(context.Background(), c)
			return err
		}
		require.NoError(t, commit(0, 0))
		// The second commit replaces every index entry. Its size decides about the spare bytes.
		limit := store.(persist.Limiter).Limits().MaxBytes
		size := limit - 3 - n*(len(kind)+100+3)
		err := commit(1, size)
		for {
			tooLarge, ok := errors.AsType[*persist.LimitError](err)
			if !ok {
				break
			}
			require.Equal(t, "bytes", tooLarge.What)
			require.ErrorIs(t, tooLarge, persist.ErrNotApplied)
			size -= tooLarge.Got - tooLarge.Limit // times have different lengths in each commit
			err = commit(1, size)
		}
		require.NoError(t, err, "%d keys", n)
		r, err := store.Load(t.Context(), persist.Key{Kind: kind, ID: fmt.Sprintf("%0100d", n-1)})
		require.NoError(t, err)
		require.EqualValues(t, 2, r.Version)
	}
}

// A commit that writes nothing, over more keys than it could read again in the same transaction, is
// still a transaction with a read that its member confirms with the others: comparisons alone would be
// answered from what the member has.
//
// Proves SCOPE-17.
func TestConfirmationOfManyKeys(t *testing.T) {
	t.Parallel()
	var confirmed, unread atomic.Int64
	s := openRefused(t.Context(), t, place(t, 1), etcd.Config{}, func(request any) bool {
		if txn, ok := request.(*etcdserverpb.TxnRequest); ok && len(txn.Compare) > 64 && len(txn.Success) == 0 {
			if len(txn.Failure) > 0 && !txn.Failure[0].GetRequestRange().GetSerializable() {
				confirmed.Add(1)
			} else {
				unread.Add(1)
			}
		}
		return false
	})
	c := persist.Commit{ID: "a.1"}
	confirm := persist.Commit{ID: "a.2"}
	for i := range 80 {
		key := persist.Key{Kind: "k", ID: fmt.Sprint(i)}
		c.Writes = append(c.Writes, persist.Write{Key: key, Version: 1, Doc: []byte("1")})
		confirm.Guards = append(confirm.Guards, persist.Guard{Key: key, Read: true, Version: 1})
	}
	_, err := s.Commit(t.Context(), c)
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), confirm)
	require.NoError(t, err)
	require.EqualValues(t, 1, confirmed.Load())
	require.Zero(t, unread.Load())
}
