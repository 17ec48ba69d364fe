package sqlite

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/disk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

const (
	powerRole = "power: "  // begins the roles of children that strace follows
	powerDir  = "PAWL_DIR" // the folder of their database
	powerFile = "state.db"
)

func init() {
	if strings.HasPrefix(testkit.Role(), powerRole) {
		runtime.LockOSThread() // strace follows the first thread
	}
	for _, c := range powerCommits {
		testkit.Child(powerRole+c.name, func() error {
			testkit.Begin() // strace sees how the files are opened
			s, err := openChild()
			if err != nil {
				return err
			}
			if err := c.do(context.Background(), s); err != nil {
				return err
			}
			testkit.Say("committed")
			if err := s.Close(); err != nil {
				return err
			}
			testkit.Say("closed")
			return nil
		})
	}
}

// day is the unit of the leases: a test must not take half of it.
const day = 24 * time.Hour

// openChild opens the database of a child.
func openChild() (*Store, error) {
	return Open(context.Background(), filepath.Join(os.Getenv(powerDir), powerFile), Config{})
}

// powered is a store whose state has a portrait.
type powered interface {
	persist.Logger
	persist.Leaser
	persist.Purger
}

var (
	ann       = persist.Key{Kind: "account", ID: "ann"}
	bob       = persist.Key{Kind: "account", ID: "bob"}
	carl      = persist.Key{Kind: "account", ID: "carl"}
	receipt   = persist.Key{Kind: "receipt", ID: "1"}
	powerKeys = []persist.Key{ann, bob, carl, receipt, thing("a"), thing("b")}
)

// content is the document of the tests of power failures.
type content struct {
	N    int    `json:"n"`
	Next uint64 `json:"next"`          // the number of the next entry of the log
	Fill string `json:"fill,omitzero"` // makes it longer than a page
}

func documentOf(c content) json.RawMessage {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return text
}

// set returns a write of version expected+1 with a document of some length.
func set(key persist.Key, expected uint64, n, length int) persist.Write {
	return persist.Write{
		Key: key, Expected: expected, Version: expected + 1, Label: fmt.Sprint(n),
		Doc: documentOf(content{N: n, Fill: strings.Repeat("x", length)}),
	}
}

// setUp makes the records that powerCommits need: ann has a log, bob a lease, and the receipt is a
// tombstone.
func setUp(ctx context.Context, s powered) error {
	withLog, withLease := set(ann, 0, 1, 100), set(bob, 0, 1, 100)
	log := adding(1, `"one"`, `"two"`)
	withLog.Log, withLease.Acquire = &log, &persist.Acquire{Holder: "h", For: 2 * day}
	for i, writes := range [][]persist.Write{
		{withLog}, {withLease}, {set(receipt, 0, 1, 9000)}, {{Key: receipt, Expected: 1, Version: 2, Deleted: true}},
	} {
		if _, err := s.Commit(ctx, persist.Commit{ID: fmt.Sprintf("setup.%d", i), Writes: writes}); err != nil {
			return err
		}
	}
	return nil
}

// powerCommit is a sort of commit.
type powerCommit struct {
	name  string
	setUp func(ctx context.Context, s powered) error // nil: there is no database yet
	do    func(ctx context.Context, s powered) error
}

// committing returns the function that makes one commit.
func committing(writes []persist.Write, guards ...persist.Guard) func(context.Context, powered) error {
	return func(ctx context.Context, s powered) error {
		_, err := s.Commit(ctx, persist.Commit{ID: "child.1", Writes: writes, Guards: guards})
		return err
	}
}

var powerCommits = []powerCommit{
	{"first", nil, committing([]persist.Write{set(ann, 0, 2, 10)})},
	{"create", setUp, committing([]persist.Write{set(carl, 0, 2, 5000)})},
	{"replace", setUp, committing([]persist.Write{set(ann, 1, 2, 200)})},
	{"several", setUp, committing([]persist.Write{set(ann, 1, 2, 6000), set(bob, 1, 2, 10), set(carl, 0, 2, 300)}, persist.Guard{Key: receipt, Read: true, Version: 2, Gone: true})},
	{"acquire", setUp, func(ctx context.Context, s powered) error {
		w := set(ann, 1, 2, 200)
		w.Acquire = &persist.Acquire{Holder: "child", For: 3 * day}
		return committing([]persist.Write{w})(ctx, s)
	}},
	{"renew", setUp, committing(nil, persist.Guard{Key: bob, Token: 1, Extend: 5 * day})},
	{"release", setUp, committing(nil, persist.Guard{Key: bob, Token: 1, Release: true})},
	{"take", setUp, func(ctx context.Context, s powered) error {
		_, err := s.Take(ctx, persist.Query{Kind: "account", Limit: 5}, persist.Acquire{Holder: "child", For: 3 * day}, nil)
		return err
	}},
	{"log", setUp, func(ctx context.Context, s powered) error {
		w, log := set(ann, 1, 2, 200), adding(3, `"three"`, `"four"`, `"five"`)
		log.Drop = 2
		w.Log = &log
		return committing([]persist.Write{w})(ctx, s)
	}},
	{"delete", setUp, committing([]persist.Write{{Key: ann, Expected: 1, Version: 2, Deleted: true, Log: &persist.LogWrite{Clear: true}}})},
	{"purge", setUp, func(ctx context.Context, s powered) error {
		_, err := s.Purge(ctx, persist.Query{})
		return err
	}},
}

// portrait describes all that a store keeps, but for times: these are rounded to hours from now.
func portrait(ctx context.Context, s powered) (string, error) {
	var text strings.Builder
	for _, key := range powerKeys {
		r, err := s.Load(ctx, key)
		switch {
		case errors.Is(err, persist.ErrNotFound):
			fmt.Fprintf(&text, "%s is absent, above version %d\n", key, r.Version)
			continue
		case err != nil:
			return "", err
		}
		hours := func(at time.Time) time.Duration {
			if at.IsZero() {
				return 0
			}
			return at.Sub(r.Now).Round(day)
		}
		fmt.Fprintf(&text, "%s has version %d, born %d, deleted %t, label %q, %d bytes %x, expires %s, lease %q %d %s, commits %s\n",
			key, r.Version, r.Born, r.Deleted, r.Label, len(r.Doc), crc32.ChecksumIEEE(r.Doc), hours(r.Expires),
			r.Lease.Holder, r.Lease.Token, hours(r.Lease.Until), r.Commits)
		log, err := s.ReadLog(ctx, persist.LogQuery{Key: key})
		if err != nil {
			return "", err
		}
		for _, e := range log {
			fmt.Fprintf(&text, "  entry %d: %s\n", e.Number, e.Data)
		}
	}
	page, err := s.List(ctx, persist.Query{Kind: "account"})
	if err != nil {
		return "", err
	}
	for _, r := range page.Records {
		fmt.Fprintf(&text, "listed: %s with version %d\n", r.Key, r.Version)
	}
	entries, err := s.ReadOrder(ctx, persist.OrderQuery{})
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		fmt.Fprintf(&text, "position %d: entry %d of %s\n", e.Position, e.Number, e.Key)
	}
	last, err := s.LastPosition(ctx)
	fmt.Fprintf(&text, "last position: %d\n", last)
	return text.String(), err
}

// left holds the portraits of the databases that power failures have left, by the content of their
// files. Many failures leave the same content, and one look at it is enough.
type left map[[sha256.Size]byte]string

// portrait opens the database that a power failure has left in dir. It asserts that the database is
// not damaged, and that a commit on top of it succeeds.
func (l left) portrait(t *testing.T, dir string) string {
	t.Helper()
	ctx, content := t.Context(), digest(t, dir)
	if known, ok := l[content]; ok {
		return known
	}
	s, err := Open(ctx, filepath.Join(dir, powerFile), Config{CheckIntegrity: true})
	require.NoError(t, err)
	got, err := portrait(ctx, s)
	require.NoError(t, err)
	_, err = s.Commit(ctx, persist.Commit{ID: "top.1", Writes: []persist.Write{{Key: thing("top"), Version: 1000, Doc: []byte(`{}`)}}})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	l[content] = got
	return got
}

// digest returns a hash of the names and contents of the files in dir.
func digest(t *testing.T, dir string) (sum [sha256.Size]byte) {
	t.Helper()
	all := sha256.New()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		info, err := e.Info()
		require.NoError(t, err)
		fmt.Fprintf(all, "%q %v %d ", e.Name(), info.Mode(), len(data))
		all.Write(data)
	}
	return [sha256.Size]byte(all.Sum(nil))
}

// powerDisk returns a disk with the folder as it is. The file beside the database that all
// connections map into their memory is built again after a restart.
func powerDisk(t *testing.T, dir string, seed uint64) *disk.Disk {
	t.Helper()
	d := disk.New(t, dir, seed)
	d.Drop("-shm")
	return d
}

// TestPowerFailure cuts the power at every moment of a commit of each sort, from before the database
// is opened until it is closed. All of the commit is there or nothing, and all of it once it was
// acknowledged. The store opens without help.
//
// Proves STORE-7, TX-3.
func TestPowerFailure(t *testing.T) {
	ctx, moments, failures, found := t.Context(), 0, 0, left{}
	mixtures := testkit.Times(8, 2)
	for _, c := range powerCommits {
		dir, log, model := t.TempDir(), filepath.Join(t.TempDir(), "log"), memory.New()
		if c.setUp != nil {
			s, err := Open(ctx, filepath.Join(dir, powerFile), Config{})
			require.NoError(t, err)
			require.NoError(t, c.setUp(ctx, s))
			require.NoError(t, s.Close())
			require.NoError(t, c.setUp(ctx, model))
		}
		before, err := portrait(ctx, model)
		require.NoError(t, err)
		require.NoError(t, c.do(ctx, model))
		after, err := portrait(ctx, model)
		require.NoError(t, err)
		require.NotEqual(t, before, after, c.name)

		d := powerDisk(t, dir, rand.Uint64())
		said := disk.Start(t, powerRole+c.name, []string{powerDir + "=" + dir}, disk.Flags(log)).Wait()
		require.Equal(t, []string{"committed", "closed"}, said)
		d.FeedTrace(t, log, func(answers int) {
			moments++
			d.Failures(t, mixtures, func(dir string) {
				failures++
				if got := found.portrait(t, dir); got != after {
					require.Equal(t, before, got, "%s: the commit is there in part", c.name)
					require.Zero(t, answers, "%s: an acknowledged commit is lost", c.name)
				}
			})
		})
		d.Verify(t)
	}
	testkit.Figures(t, "%d sorts of commits, %d moments, %d power failures, which left %d different contents", len(powerCommits), moments, failures, len(found))
}
