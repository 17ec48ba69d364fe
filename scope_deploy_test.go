package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/stretchr/testify/require"
)

func init() { testkit.Child("release", releaseChild) }

// In a rolling deploy two releases run at the same time. A change of the form of a document takes
// two steps:
//
//  1. The first release adds a field whose zero value means "not set", and keeps the old fields.
//     The schema stays the same, so the release before it may still write: it keeps unknown fields.
//  2. The second release starts when only the first one still runs. It changes the form with an
//     upgrade, which raises the schema. The first release refuses documents of the new schema
//     (*SchemaError), but may write all others. A process of the first release passes a refused
//     document on to a newer process, for example by releasing the job, or fails.
//
// A change that only adds fields needs one step, and no release is refused. A change that renames
// or removes a field can be split: one release adds the new field next to the old, and the next
// release drops the old one.

type pageOne struct {
	Title  string `json:"title"`
	Visits int    `json:"visits"`
}

type pageTwo struct {
	Title  string         `json:"title"`
	Visits int            `json:"visits"`
	Lang   string         `json:"lang"` // new
	Marks  map[string]int `json:"marks"`
}

type pageThree struct {
	Title  string         `json:"title"`
	Lang   string         `json:"lang"`
	Marks  map[string]int `json:"marks"`
	Counts map[string]int `json:"counts"` // holds the visits
}

var (
	pagesOne   = pawl.Kind[pageOne]{Name: "page"}
	pagesTwo   = pawl.Kind[pageTwo]{Name: "page"}
	pagesThree = pawl.Kind[pageThree]{Name: "page", Upgrades: []pawl.Upgrade{func(d pawl.Doc) error {
		d["counts"] = map[string]any{"visits": d["visits"]}
		delete(d, "visits")
		return nil
	}}}
)

const (
	deployPages  = 4
	deployTurns  = 8
	deployEnough = 5_000 // turns after which the newer release must have written everything
)

// visitByRelease has a function per release, which visits a page in turn n.
var visitByRelease = map[string]func(ctx context.Context, rt *pawl.Runtime, id string, n int) error{
	"one": func(ctx context.Context, rt *pawl.Runtime, id string, n int) (err error) {
		s := pagesOne.Scope(rt, id)
		return s.Hold(ctx, func(ctx context.Context, _ *pawl.Lease) error {
			switch n % 3 {
			case 0:
				_, err = s.IncState(ctx, "visits", 1)
			case 1:
				_, err = s.AtomicState(ctx, func(_ context.Context, p *pageOne) error { p.Visits++; return nil })
			case 2:
				_, err = s.Apply(ctx, pawl.All{pawl.Patch{"title": fmt.Sprint("by one, ", n)}, pawl.Inc{Field: "visits", By: 1}})
			}
			return err
		}, pawl.WaitForLease())
	},
	"two": func(ctx context.Context, rt *pawl.Runtime, id string, n int) (err error) {
		s := pagesTwo.Scope(rt, id)
		mark := fmt.Sprint("two-", os.Getenv(processBatch), "-", n)
		return s.Hold(ctx, func(ctx context.Context, _ *pawl.Lease) error {
			if n%2 == 0 {
				_, err = s.AtomicState(ctx, func(_ context.Context, p *pageTwo) error {
					if p.Marks == nil {
						p.Marks = map[string]int{}
					}
					p.Lang, p.Marks[mark] = "en", n
					p.Visits++
					return nil
				})
			} else {
				_, err = s.Apply(ctx, pawl.All{pawl.SetRecord{Field: "marks", Key: mark, Value: n}, pawl.Inc{Field: "visits", By: 1}})
			}
			return err
		}, pawl.WaitForLease())
	},
	"three": func(ctx context.Context, rt *pawl.Runtime, id string, n int) error {
		s := pagesThree.Scope(rt, id)
		return s.Hold(ctx, func(ctx context.Context, _ *pawl.Lease) error {
			_, err := s.IncState(ctx, pawl.Field("counts").At("visits"), 1)
			return err
		}, pawl.WaitForLease())
	},
}

// releaseChild visits the pages in turn and reports each result. With PAWL_TEST_BATCH "until
// refused" it continues until every page is refused.
func releaseChild() error {
	return processChild(func(ctx context.Context, rt *pawl.Runtime) error {
		visit := visitByRelease[os.Getenv(processName)]
		refused := map[int]bool{}
		turns := deployTurns
		if os.Getenv(processBatch) == "until refused" {
			turns = deployEnough
		}
		for n := 0; n < turns && len(refused) < deployPages; n++ {
			for page := range deployPages {
				if refused[page] {
					continue
				}
				err := visit(ctx, rt, fmt.Sprint("page-", page), n)
				var schema *pawl.SchemaError
				switch {
				case err == nil:
					testkit.Say("wrote %d %d", page, n)
				case errors.As(err, &schema):
					refused[page] = true
					testkit.Say("refused %d %d", page, n)
				default:
					return err
				}
			}
		}
		return nil
	})
}

// In both steps of a rolling deploy two releases write from two processes, and no acknowledged
// write is lost. Proves SCOPE-8, SCOPE-15, STORE-13.
func TestRollingDeploy(t *testing.T) {
	for _, s := range stores.Shared {
		t.Run(s.Name, func(t *testing.T) {
			location := s.New(t)
			t.Parallel()
			testRollingDeploy(t, location)
		})
	}
}

func testRollingDeploy(t *testing.T, location string) {
	store := stores.OpenFor(t, location)
	visits, marks := [deployPages]int{}, [deployPages]map[string]int{}
	for i := range marks {
		marks[i] = map[string]int{}
	}
	start := func(release, batch string) *testkit.Process {
		return testkit.Start(t, "release", stores.Env(location), processName+"="+release, processBatch+"="+batch)
	}
	refused := map[string]int{}
	note := func(release, batch string, lines []string) {
		for _, line := range lines {
			var page, n int
			what, rest, _ := strings.Cut(line, " ")
			_, err := fmt.Sscan(rest, &page, &n)
			require.NoError(t, err, line)
			if what == "refused" {
				refused[release]++
				continue
			}
			visits[page]++
			if release == "two" {
				marks[page][fmt.Sprint("two-", batch, "-", n)] = n
			}
		}
	}

	one, two := start("one", ""), start("two", "")
	testkit.Ready(one, two)
	note("one", "", one.Wait())
	note("two", "", two.Wait())
	require.Empty(t, refused, "the schema is the same")
	before := openRuntime(t, pawl.Config{Store: store})
	for i := range deployPages {
		got, err := pagesTwo.Scope(before, fmt.Sprint("page-", i)).State(t.Context())
		require.NoError(t, err)
		require.Equal(t, pageTwo{Title: "by one, 5", Visits: visits[i], Lang: "en", Marks: marks[i]}, got)
	}

	const batch = "until refused"
	two, three := start("two", batch), start("three", "")
	testkit.Ready(two)
	line, ok := three.Next()
	require.True(t, ok && line == "ready", line)
	var first []string
	for range 2 * deployPages {
		line, ok := two.Next()
		require.True(t, ok)
		first = append(first, line)
	}
	three.Go() // now both releases run
	note("two", batch, append(first, two.Wait()...))
	note("three", "", three.Wait())
	require.Equal(t, map[string]int{"two": deployPages}, refused, "the older release may write until the newer one has written")
	after := openRuntime(t, pawl.Config{Store: store})
	for i := range deployPages {
		s := pagesThree.Scope(after, fmt.Sprint("page-", i))
		got, err := s.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, pageThree{Title: "by one, 5", Lang: "en", Marks: marks[i], Counts: map[string]int{"visits": visits[i]}}, got)
		was, err := store.Load(t.Context(), s.Key())
		require.NoError(t, err)
		require.Equal(t, 1, was.Schema)
		var schema *pawl.SchemaError
		_, err = pagesTwo.Scope(before, s.Key().ID).Acquire(t.Context())
		require.ErrorAs(t, err, &schema)
		require.Equal(t, 1, schema.Stored)
		err = pagesOne.Scope(before, s.Key().ID).Hold(t.Context(), func(context.Context, *pawl.Lease) error { return nil }, pawl.WaitForLease())
		require.ErrorAs(t, err, &schema)
		is, err := store.Load(t.Context(), s.Key())
		require.NoError(t, err)
		require.Equal(t, was.Version, is.Version, "a release leaves a document that it cannot read unchanged")
		require.Zero(t, is.Lease)
	}
}
