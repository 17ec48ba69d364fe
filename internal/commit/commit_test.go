package commit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

var (
	key      = persist.Key{Kind: "k", ID: "a"}
	landedAt = time.Unix(7, 0)
	errCut   = errors.New("connection cut")
	errBusy  = fmt.Errorf("%w: %w: busy", persist.ErrNotApplied, persist.ErrUnavailable)
	errUnfit = fmt.Errorf("%w: document too deep", persist.ErrNotApplied)
)

// scripted is a store that answers commits from a list. The last answer repeats.
type scripted struct {
	answers []error
	got     []persist.Commit
	at      []time.Time
	floor   uint64
}

func (s *scripted) Commit(_ context.Context, c persist.Commit) (time.Time, error) {
	err := s.answers[min(len(s.got), len(s.answers)-1)]
	s.got, s.at = append(s.got, c), append(s.at, time.Now())
	if err != nil {
		return time.Time{}, err
	}
	return landedAt, nil
}

func (s *scripted) Load(context.Context, persist.Key) (persist.Record, error) {
	return persist.Record{Version: s.floor}, persist.ErrNotFound
}

// conflict is the answer that a record with these ids won.
func conflict(commits ...string) error {
	return &persist.Conflict{Winners: []persist.Record{{Key: key, Version: 9, Born: 1, Updated: landedAt, Commits: commits}}}
}

func write() persist.Commit {
	return persist.Commit{ID: "w.5", Insist: true, Writes: []persist.Write{{Key: key, Expected: 1, Version: 2, Doc: []byte(`{}`)}}}
}

// Each answer of the store, and each answer after a lost one, leads to its verdict. Proves CAS-7.
func TestVerdicts(t *testing.T) {
	guard := persist.Commit{ID: "w.5", Guards: []persist.Guard{{Key: key, Read: true, Version: 1}}}
	other := &persist.Conflict{Winners: []persist.Record{{Key: persist.Key{Kind: "k", ID: "z"}, Version: 9}}}
	fenced := &persist.Fenced{Current: persist.Record{Key: key, Version: 3}}
	own := &OwnError{Err: errors.New("mine")}
	for _, c := range []struct {
		name    string
		route   Route
		commit  persist.Commit
		answers []error
		want    Kind
		cause   error
		sent    int
	}{
		{"accepted", Route{}, write(), []error{nil}, Landed, nil, 1},
		{"conflict", Route{}, write(), []error{conflict("x.1")}, Lost, nil, 1},
		{"conflict, wrapped", Route{}, write(), []error{fmt.Errorf("store: %w", conflict("x.1"))}, Lost, nil, 1},
		{"conflict without records", Route{}, write(), []error{other}, Unavailable, other, 1},
		{"fenced", Route{}, write(), []error{fenced}, Fenced, nil, 1},
		{"rolled back by its own code", Route{Once: true}, write(), []error{own}, RolledBack, own.Err, 1},
		{"not applied", Route{}, write(), []error{errBusy}, Unavailable, errBusy, 1},
		{"rejected", Route{}, write(), []error{errUnfit}, Rejected, errUnfit, 1},
		{"guards are never rejected", Route{}, guard, []error{errUnfit}, Unavailable, errUnfit, 1},
		{"the caller's own transaction failed", Route{Once: true, Last: true}, write(), []error{errUnfit}, Unavailable, errUnfit, 1},
		{"closed", Route{}, write(), []error{persist.ErrClosed}, Unavailable, persist.ErrClosed, 1},
		{"unsupported", Route{}, write(), []error{persist.ErrUnsupported}, Unavailable, persist.ErrUnsupported, 1},

		{"guards alone: safe to repeat", Route{}, guard, []error{errCut}, Unavailable, errCut, 1},
		{"guards with the caller's own code: not safe to repeat", Route{Once: true}, guard, []error{errCut}, Unknown, errCut, 1},
		{"the surrounding transaction has ended", Route{Once: true, Last: true}, write(), []error{errCut}, Unknown, errCut, 1},
		{"without a key", Route{Once: true}, persist.Commit{ID: "w.5"}, []error{errCut}, Unknown, errCut, 1},

		{"cut, then accepted", Route{}, write(), []error{errCut, nil}, Landed, nil, 2},
		{"cut, then the id is found", Route{}, write(), []error{errCut, conflict("w.5", "x.1")}, Landed, nil, 2},
		{"cut, then another commit is found", Route{}, write(), []error{errCut, conflict("x.1")}, Lost, nil, 2},
		{"cut, then no evidence", Route{}, write(), []error{errCut, conflict(writers(persist.KeptWriters)...)}, Unknown, errCut, 2},
		{"cut, then not applied, then accepted", Route{}, write(), []error{errCut, errBusy, nil}, Landed, nil, 3},
		{"cut, then a conflict without records", Route{}, write(), []error{errCut, other, nil}, Landed, nil, 3},
		{"cut, then rolled back by its own code", Route{Once: true}, write(), []error{errCut, own}, RolledBack, own.Err, 2},
		{"cut, then fenced, no version has moved", Route{}, write(), []error{errCut, fenced, nil}, Fenced, nil, 3},
		{"cut, then fenced, the id is found", Route{}, write(), []error{errCut, fenced, conflict("w.5")}, Landed, nil, 3},
		{"cut, then fenced, another commit is found", Route{}, write(), []error{errCut, fenced, conflict("x.1")}, Fenced, nil, 3},
		{"cut, then fenced, no evidence", Route{}, write(), []error{errCut, fenced, conflict(writers(persist.KeptWriters)...)}, Unknown, errCut, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &scripted{answers: c.answers}
				c.route.Store = store
				v := Send(t.Context(), c.route, Backoff{First: time.Second, Max: time.Minute}, c.commit, []Base{{Born: 1}})
				require.Equal(t, c.want, v.Kind, v.Kind.String())
				require.Equal(t, c.cause, v.Cause)
				require.Equal(t, "w.5", v.ID)
				require.Len(t, store.got, c.sent)
				switch v.Kind {
				case Landed:
					require.Equal(t, landedAt, v.At)
				case Lost, Fenced:
					require.Equal(t, key, v.Records[0].Key)
				}
				if v.Kind != Landed && len(c.commit.Keys()) > 0 {
					require.Equal(t, key, v.Key)
				}
			})
		})
	}
}

// A commit in doubt is sent again unchanged, except without Insist: the pauses are too long to hold
// the winners. Proves CAS-7.
func TestCommitInDoubtIsSentUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &scripted{answers: []error{errCut, errBusy, errCut, nil}}
		require.Equal(t, Landed, Send(t.Context(), Route{Store: store}, Backoff{First: 1, Max: 1}, write(), []Base{{Born: 1}}).Kind)
		require.Len(t, store.got, 4)
		for i, got := range store.got {
			want := write()
			want.Insist = i == 0
			require.Equal(t, want, got)
		}
	})
}

// After a lost lease, a commit in doubt tests its versions in the store itself, without the
// caller's own code. Proves CAS-7, STORE-13.
func TestFencedCommitInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &scripted{answers: []error{nil}}
		own := &scripted{answers: []error{errCut, &persist.Fenced{Current: persist.Record{Key: key}}}}
		v := Send(t.Context(), Route{Store: store, Commit: own.Commit, Once: true}, Backoff{}, write(), []Base{{Born: 1}})
		require.Equal(t, Fenced, v.Kind)
		require.Len(t, own.got, 2)
		require.Equal(t, []persist.Commit{{ID: "w.5", Guards: []persist.Guard{{Key: key, Read: true, Version: 1}}}}, store.got)
	})
}

// An Acquire in doubt that meets a live lease may still commit when that lease ends.
// Proves STORE-13.
func TestAcquireInDoubtMeetsLiveLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Unix(100, 0)
		held := &persist.Conflict{Winners: []persist.Record{{Key: key, Version: 1, Updated: landedAt, Now: now,
			Lease: persist.Lease{Holder: "h", Token: 1, Until: now.Add(time.Second)}}}}
		store := &scripted{answers: []error{errCut, held, held, nil}}
		c := write()
		c.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: time.Minute}
		require.Equal(t, Landed, Send(t.Context(), Route{Store: store}, Backoff{First: time.Second, Max: time.Second}, c, []Base{{Born: 1}}).Kind)
		require.Len(t, store.got, 4)
	})
}

// The verdict Lost reports whether the store holds the winners for the next commit. Proves CAS-1.
func TestLostReportsHeldWinners(t *testing.T) {
	store := &scripted{answers: []error{&persist.Conflict{Held: true, Winners: []persist.Record{{Key: key, Version: 9}, {Key: persist.Key{Kind: "k", ID: "z"}}}}}}
	v := Send(t.Context(), Route{Store: store}, Backoff{}, write(), []Base{{Born: 1}})
	require.Equal(t, Verdict{Kind: Lost, ID: "w.5", Key: key, Records: []persist.Record{{Key: key, Version: 9}}, Held: true}, v, "records of other keys are left out")
}

// A commit in doubt is sent again at once, then after growing pauses, until ctx ends. Proves CAS-7.
func TestResendUntilContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		store, start := &scripted{answers: []error{errCut}}, time.Now()
		b := Backoff{First: time.Second, Max: 8 * time.Second}
		v := Send(ctx, Route{Store: store}, b, write(), []Base{{Born: 1}})
		require.Equal(t, Unknown, v.Kind)
		require.Equal(t, errCut, v.Cause)
		require.Equal(t, time.Hour, time.Since(start))
		require.Equal(t, start, store.at[1])
		for i := 2; i < len(store.at); i++ {
			require.Less(t, store.at[i].Sub(store.at[i-1]), b.Bound(i-1))
		}
		require.Greater(t, len(store.at), 450, "the pauses do not exceed their maximum")
	})
}

// A commit whose context has ended is not sent again.
func TestNoResendAfterContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	store := &scripted{answers: []error{errCut}}
	require.Equal(t, Unknown, Send(ctx, Route{Store: store}, Backoff{First: time.Hour, Max: time.Hour}, write(), []Base{{Born: 1}}).Kind)
	require.Len(t, store.got, 1)
}

// The floor is read only if a creation in doubt depends on it. If the store does not know its
// floor, the record may have been purged.
func TestFloorOfCreationInDoubt(t *testing.T) {
	for _, c := range []struct {
		floor uint64
		want  Kind
	}{{1, Lost}, {2, Unknown}} {
		store := &scripted{answers: []error{errCut, &persist.Conflict{Winners: []persist.Record{{Key: key, Version: 9, Born: 9, Updated: landedAt}}}}, floor: c.floor}
		create := write()
		create.Writes[0].Expected = 0
		require.Equal(t, c.want, Send(t.Context(), Route{Store: store}, Backoff{First: 1, Max: 1}, create, []Base{{Absent: true}}).Kind)
	}
}

func TestBackoffDoublesUpToMax(t *testing.T) {
	b := Backoff{First: 2 * time.Second, Max: 9 * time.Second}
	for n, want := range []time.Duration{0: 2, 1: 2, 2: 4, 3: 8, 4: 9, 5: 9} {
		require.Equal(t, want*time.Second, b.Bound(n))
	}
	require.Equal(t, 9*time.Second, b.Bound(1_000))
	require.Zero(t, Backoff{}.Bound(3))
	require.Equal(t, time.Second, Backoff{First: time.Minute, Max: time.Second}.Bound(1))
	require.Equal(t, time.Duration(1<<63-1), Backoff{First: 1, Max: 1<<63 - 1}.Bound(70), "no overflow")
}

func TestSleepEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		require.True(t, Sleep(ctx, time.Millisecond))
		require.False(t, Sleep(ctx, time.Hour))
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestAnswered(t *testing.T) {
	for err, want := range map[error]bool{
		nil: true, conflict(): true, &persist.Fenced{}: true, &OwnError{}: true, fmt.Errorf("w: %w", conflict()): true,
		errCut: false, errBusy: false, &OwnError{Err: persist.ErrClosed}: true,
	} {
		require.Equal(t, want, Answered(err), "%v", err)
	}
	require.False(t, NotApplied(&OwnError{Err: persist.ErrNotApplied}), "an error of the caller's own code is no answer of the store")
}

func TestKindString(t *testing.T) {
	require.Equal(t, "none landed lost fenced rolled back unavailable unknown none",
		fmt.Sprint(Kind(0), Landed, Lost, Fenced, RolledBack, Unavailable, Unknown, Kind(99)))
}
