package batch_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

// wallet is the account of a user.
type wallet struct {
	Points int64 `json:"points"`
}

var wallets = pawl.Kind[wallet]{Name: "wallet"}

// prompt is an item.
type prompt struct {
	Text  string `json:"text"`
	Price int64  `json:"price"`
}

// image is an artifact.
type image struct {
	Name string `json:"name"`
}

type (
	queue  = batch.Queue[prompt, image]
	config = batch.Config[prompt, image]
	aJob   = batch.Job[prompt]
)

var quiet = slog.New(slog.DiscardHandler)

var errCall = errors.New("the call failed")

// studio is the other system: it makes images and counts the calls.
type studio struct {
	mu     sync.Mutex
	images map[string]bool // by key
	calls  map[string]int
	// during is called in each call, with the text of the item. nil: nothing.
	during func(ctx context.Context, text string) error
	// removing is called before each removal. nil: nothing.
	removing func(key string) error
}

func newStudio() *studio { return &studio{images: map[string]bool{}, calls: map[string]int{}} }

func (s *studio) draw(ctx context.Context, key string, p prompt) (image, error) {
	s.mu.Lock()
	s.calls[key]++
	s.images[key] = true // also if the call fails: half an image
	s.mu.Unlock()
	if s.during != nil {
		if err := s.during(ctx, p.Text); err != nil {
			return image{}, err
		}
	}
	return image{Name: key}, nil
}

func (s *studio) remove(_ context.Context, key string, _ *image) error {
	if s.removing != nil {
		if err := s.removing(key); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.images, key)
	return nil
}

// left returns the keys of the images that exist.
func (s *studio) left() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.images))
}

func (s *studio) count() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		n += c
	}
	return n
}

func open(t testing.TB, store persist.Store) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{wallets}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	return rt
}

// newQueue returns a queue of the studio with the name "images".
func newQueue(t testing.TB, rt *pawl.Runtime, s *studio, change ...func(c *config)) *queue {
	t.Helper()
	c := config{
		Name: "images", Ledger: batch.ScopeLedger(wallets, "points"),
		Price: func(p prompt) (int64, error) { return p.Price, nil },
		Make:  s.draw, Remove: s.remove, Logger: quiet, Poll: 50 * time.Millisecond,
		Retry: pawl.Retry{Attempts: 2, First: time.Millisecond, Max: time.Millisecond},
	}
	for _, fn := range change {
		fn(&c)
	}
	q, err := batch.New(rt, c)
	require.NoError(t, err)
	return q
}

// start starts a queue until the test ends.
func start(t testing.TB, q *queue) {
	t.Helper()
	require.NoError(t, q.Start(context.Background()))
	t.Cleanup(func() { require.NoError(t, q.Stop(context.Background())) })
}

// give sets the balance of an account.
func give(t testing.TB, rt *pawl.Runtime, account string, points int64) {
	t.Helper()
	_, err := wallets.Scope(rt, account).SetState(t.Context(), wallet{points})
	require.NoError(t, err)
}

func balance(t testing.TB, rt *pawl.Runtime, account string) int64 {
	t.Helper()
	w, err := wallets.Scope(rt, account).State(context.Background())
	require.NoError(t, err)
	return w.Points
}

// prompts returns items that cost price each.
func prompts(n int, price int64) (items []prompt) {
	for i := range n {
		items = append(items, prompt{Text: fmt.Sprint("p", i), Price: price})
	}
	return items
}

// submit submits a job of the account "ada".
func submit(t testing.TB, q *queue, id string, items []prompt) {
	t.Helper()
	_, created, err := q.Submit(t.Context(), aJob{ID: id, Account: "ada", Items: items})
	require.NoError(t, err)
	require.True(t, created)
}

func progress(t testing.TB, q *queue, id string) batch.Progress {
	t.Helper()
	p, err := q.Progress(context.Background(), id)
	require.NoError(t, err)
	return p
}

// finished waits until a job is finished.
func finished(t testing.TB, q *queue, id string) (last batch.Progress) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for p, err := range q.Watch(ctx, id) {
		require.NoError(t, err, "%+v", last)
		last = p
	}
	require.True(t, last.Status.Finished(), "%+v", last)
	return last
}

func cancelJob(t testing.TB, q *queue, id string) batch.Cancellation {
	t.Helper()
	c, err := q.Cancel(context.Background(), id)
	require.NoError(t, err)
	return c
}

// states returns the states of the items of a job.
func states(t testing.TB, q *queue, id string) string {
	t.Helper()
	var all []string
	for it, err := range q.Items(context.Background(), id) {
		require.NoError(t, err)
		all = append(all, string(it.State))
	}
	return strings.Join(all, " ")
}

// checkBooks checks that no point was lost or invented: the balance and what the items of the jobs
// have cost are what the account began with. The sums of each job agree with its items.
func checkBooks(t testing.TB, rt *pawl.Runtime, q *queue, began int64, ids ...string) {
	t.Helper()
	spent := int64(0)
	for _, id := range ids {
		p, cost := progress(t, q, id), int64(0)
		var done, failed, finalized, canceled int
		for it, err := range q.Items(context.Background(), id) {
			require.NoError(t, err)
			switch it.State {
			case batch.Charged, batch.Made, batch.Finalized:
				cost += it.Price
			}
			if it.Artifact != nil {
				done++
			}
			switch it.State {
			case batch.ItemFailed:
				failed++
			case batch.Finalized:
				finalized++
			case batch.ItemCanceled:
				canceled++
			}
		}
		require.Equal(t, []int{done, failed, finalized, canceled}, []int{p.Done, p.Failed, p.Finalized, p.Canceled}, "%+v", p)
		require.Equal(t, cost, p.Cost(), "%+v", p)
		spent += cost
	}
	require.Equal(t, began, balance(t, rt, "ada")+spent)
}
