package pawl_test

import (
	"context"
	"errors"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

type article struct {
	Title string   `json:"title"`
	Words []string `json:"words"`
}

// articles returns the kind of a release that knows schemas up to version.
func articles(version int) pawl.Kind[article] {
	upgrades := []pawl.Upgrade{
		func(d pawl.Doc) error { // the field had another name
			d["title"] = d["name"]
			delete(d, "name")
			return nil
		},
		func(d pawl.Doc) error { // one word became many
			if w, ok := d["word"]; ok {
				d["words"] = []any{w}
				delete(d, "word")
			}
			return nil
		},
		func(d pawl.Doc) error {
			if d["title"] == "bad" {
				return errBadArticle
			}
			return nil
		},
	}
	return pawl.Kind[article]{Name: "article", Upgrades: upgrades[:version]}
}

var errBadArticle = errors.New("cannot be upgraded")

// A document of an older schema is upgraded when it is read, and stored in the new form by the next
// write. Proves SCOPE-15.
func TestUpgrade(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for from, doc := range []string{`{"name":"n","word":"w","extra":18446744073709551615}`, `{"title":"n","word":"w","extra":18446744073709551615}`, `{"title":"n","words":["w"],"extra":18446744073709551615}`} {
			s := articles(3).Scope(p.rt, string(rune('a'+from)))
			p.put(t, s.Key(), doc, from)
			snap, err := s.Snapshot(t.Context())
			require.NoError(t, err)
			require.Equal(t, article{Title: "n", Words: []string{"w"}}, snap.State())
			require.EqualValues(t, 1, snap.Version)
			listed := 0
			for snap, err := range articles(3).List(t.Context(), p.rt, pawl.Query{Prefix: s.Key().ID}) {
				require.NoError(t, err)
				require.Equal(t, article{Title: "n", Words: []string{"w"}}, snap.State())
				listed++
			}
			require.Equal(t, 1, listed)
			_, err = s.Apply(t.Context(), pawl.Patch{"title": "n"})
			require.NoError(t, err, "nothing to change")
			r := p.record(t, s.Key())
			require.JSONEq(t, doc, string(r.Doc), "reading writes nothing")
			require.Equal(t, from, r.Schema)

			_, err = s.PushState(t.Context(), "words", "x")
			require.NoError(t, err)
			r = p.record(t, s.Key())
			require.Equal(t, 3, r.Schema)
			require.EqualValues(t, 2, r.Version)
			require.Equal(t, `{"extra":18446744073709551615,"title":"n","words":["w","x"]}`, string(r.Doc), "in the new form, with the unknown field")
			got, err := articles(3).Scope(p.another(t), s.Key().ID).State(t.Context())
			require.NoError(t, err)
			require.Equal(t, article{Title: "n", Words: []string{"w", "x"}}, got, "not upgraded twice")
		}
	})
}

// A mutation sees the upgraded state without a read before it. Proves SCOPE-15.
func TestUpgradeByMutation(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := articles(3).Scope(p.rt, "a")
		p.put(t, s.Key(), `{"name":"n","word":"w"}`, 0)
		_, err := s.AtomicState(t.Context(), func(_ context.Context, a *article) error {
			a.Title += a.Words[0]
			return nil
		}, pawl.IfVersion(1))
		require.NoError(t, err)
		requireState(t, p, s, 2, article{Title: "nw", Words: []string{"w"}})
		require.Equal(t, 3, p.record(t, s.Key()).Schema)
	})
}

// requireSchemaError asserts that reads and verbs refuse the document of s, and that it stays
// unchanged.
func requireSchemaError(t *testing.T, p path, s pawl.Scope[article], want *pawl.SchemaError) {
	t.Helper()
	before := p.record(t, s.Key())
	check := func(err error) {
		t.Helper()
		var e *pawl.SchemaError
		require.ErrorAs(t, err, &e)
		require.Equal(t, want.Scope, e.Scope)
		require.Equal(t, want.Stored, e.Stored)
		require.Equal(t, want.Known, e.Known)
		if want.Cause == nil {
			require.NoError(t, e.Cause)
		} else {
			require.ErrorIs(t, err, want.Cause)
		}
		require.False(t, pawl.IsRetryable(err))
		require.Equal(t, "SCHEMA", pawl.Code(err))
	}
	_, err := s.State(t.Context())
	check(err)
	_, err = s.Snapshot(t.Context())
	check(err)
	_, ok := s.LastSeen()
	require.False(t, ok)
	for _, m := range []pawl.Mutation{
		pawl.Patch{"title": "x"}, pawl.Patch{}, pawl.Set{State: article{}}, pawl.Push{Field: "words", Values: []any{"x"}},
		pawl.Atomic(func(context.Context, *article) error {
			t.Error("a function got a state that cannot be read")
			return nil
		}),
	} {
		_, err = s.Apply(t.Context(), m)
		check(err)
	}
	_, err = s.SetState(t.Context(), article{}, pawl.IfAbsent())
	require.ErrorIs(t, err, pawl.ErrExists)
	var listed error
	for _, err := range articles(want.Known).List(t.Context(), p.rt, pawl.Query{Prefix: s.Key().ID}) {
		listed = err
	}
	check(listed)
	after := p.record(t, s.Key())
	require.Equal(t, string(before.Doc), string(after.Doc))
	require.Equal(t, before.Version, after.Version)
	require.Equal(t, before.Schema, after.Schema)
	require.Zero(t, p.store.Commits.Load(), "no commit was sent")
}

// A document of a newer schema than this release knows is refused and stays unchanged.
// Proves SCOPE-15.
func TestNewerSchema(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := articles(2).Scope(p.rt, "a")
		p.put(t, s.Key(), `{"title":"n","words":["w"],"future":true}`, 3)
		requireSchemaError(t, p, s, &pawl.SchemaError{Scope: s.Key(), Stored: 3, Known: 2})
	})
}

// A document whose upgrade fails is refused and stays unchanged. Proves SCOPE-15.
func TestUpgradeFails(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := articles(3).Scope(p.rt, "a")
		p.put(t, s.Key(), `{"name":"bad","word":"w"}`, 0)
		requireSchemaError(t, p, s, &pawl.SchemaError{Scope: s.Key(), Stored: 0, Known: 3, Cause: errBadArticle})
	})
}

// A document that does not fit its type is refused and stays unchanged, but can be deleted.
// Proves SCOPE-15.
func TestDocumentOfAnotherShape(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := articles(1).Scope(p.rt, "a")
		p.put(t, s.Key(), `{"title":{"not":"a string"}}`, 1)
		_, err := s.State(t.Context())
		var e *pawl.SchemaError
		require.ErrorAs(t, err, &e)
		require.Error(t, e.Cause)
		_, err = s.PatchState(t.Context(), pawl.Patch{"title": "x"})
		require.ErrorAs(t, err, &e)
		require.Equal(t, `{"title":{"not":"a string"}}`, string(p.record(t, s.Key()).Doc))
		require.NoError(t, s.Delete(t.Context()), "a document that cannot be read can still be deleted")
		require.True(t, p.record(t, s.Key()).Deleted)
	})
}

// An upgrade that produces a value that no store could keep is refused. Proves SCOPE-15, SCOPE-16.
func TestUpgradeToAnInvalidValue(t *testing.T) {
	p := paths(t)[1]
	kind := pawl.Kind[pawl.Doc]{Name: "odd", Upgrades: []pawl.Upgrade{func(d pawl.Doc) error { d["x"] = "\x00"; return nil }}}
	s := kind.Scope(p.rt, "a")
	p.put(t, s.Key(), `{"y":1}`, 0)
	_, err := s.IncState(t.Context(), "y", 1)
	var e *pawl.SchemaError
	require.ErrorAs(t, err, &e)
	require.Equal(t, `{"y":1}`, string(p.record(t, s.Key()).Doc))
}

// An older release refuses a document that a newer one has written, and may write all others.
// Proves SCOPE-15.
func TestTwoReleases(t *testing.T) {
	store := memory.New()
	older, newer := openRuntime(t, pawl.Config{Store: store}), openRuntime(t, pawl.Config{Store: store})
	was, is := articles(1).Scope(older, "a"), articles(2).Scope(newer, "a")
	_, err := was.PatchState(t.Context(), pawl.Patch{"title": "old"})
	require.NoError(t, err)
	_, err = is.State(t.Context())
	require.NoError(t, err)
	_, err = was.PatchState(t.Context(), pawl.Patch{"title": "older"})
	require.NoError(t, err, "a read by the newer release changes nothing")
	_, err = is.PushState(t.Context(), "words", "new")
	require.NoError(t, err)
	var e *pawl.SchemaError
	_, err = was.PatchState(t.Context(), pawl.Patch{"title": "oldest"})
	require.ErrorAs(t, err, &e)
	require.Equal(t, 2, e.Stored)
	require.Equal(t, 1, e.Known)
	got, err := is.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, article{Title: "older", Words: []string{"new"}}, got)
}

// List yields every document that it can read, and an error with the id of each other one.
// Proves SCOPE-20.
func TestListContinuesAfterAnUnreadableDocument(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		kind := articles(3)
		p.put(t, kind.Scope(p.rt, "a").Key(), `{"title":"first"}`, 3)
		p.put(t, kind.Scope(p.rt, "b").Key(), `{"title":"newer"}`, 4)
		p.put(t, kind.Scope(p.rt, "c").Key(), `{"title":"bad"}`, 2)
		p.put(t, kind.Scope(p.rt, "d").Key(), `{"title":1}`, 3)
		p.put(t, kind.Scope(p.rt, "e").Key(), `{"title":"last"}`, 3)
		p.put(t, kind.Scope(p.rt, "f").Key(), `{"title":"beyond the limit"}`, 3)
		var read, unread []string
		for snap, err := range kind.List(t.Context(), p.rt, pawl.Query{Limit: 2}) {
			if err == nil {
				read = append(read, snap.ID)
				continue
			}
			var schema *pawl.SchemaError
			require.ErrorAs(t, err, &schema)
			require.Equal(t, snap.ID, schema.Scope.ID)
			require.False(t, snap.Exists())
			unread = append(unread, snap.ID)
		}
		require.Equal(t, []string{"a", "e"}, read)
		require.Equal(t, []string{"b", "c", "d"}, unread)
		for _, err := range kind.List(t.Context(), p.rt, pawl.Query{Prefix: "b"}) {
			require.Error(t, err)
			break // the caller may stop at an error
		}
	})
}
