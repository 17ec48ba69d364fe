package persisttest

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) logContents() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"an entry can be read by its number":       s.logRanges,
		"entries keep their spelling":              s.logSpelling,
		"a commit has many and large entries":      s.largeLogs,
		"logs of special keys are distinct":        s.hostileLogs,
		"a malformed log write is refused":         s.malformedLogs,
		"a returned entry belongs to the caller":   s.entryIsACopy,
		"an ended context and Close end the calls": s.logsEnd,
	}
}

// Proves STORE-1.
func (s suite) logRanges(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	var texts []string
	for i := range 150 {
		texts = append(texts, fmt.Sprint(i))
	}
	f.must(adding(create(thing), 0, texts[:7]...))
	f.must(adding(create(key("2")), 0, `"beside"`))
	w := update(thing, f.appendAll(thing, 1, 7, texts[7:]...))
	w.Log = &persist.LogWrite{Drop: 5}
	f.must(w)
	numbers := func(from, before int) (all []int) {
		for i := from; i < before; i++ {
			all = append(all, i)
		}
		return all
	}
	backwards := func(all []int) []int {
		slices.Reverse(all)
		return all
	}
	for _, c := range []struct {
		q    persist.LogQuery
		want []int
	}{
		{persist.LogQuery{}, numbers(5, 105)},
		{persist.LogQuery{Limit: 1000}, numbers(5, 150)},
		{persist.LogQuery{Limit: 3}, numbers(5, 8)},
		{persist.LogQuery{From: 5, Limit: 2}, numbers(5, 7)},
		{persist.LogQuery{From: 6, Before: 9}, numbers(6, 9)},
		{persist.LogQuery{From: 6, Before: 7}, numbers(6, 7)},
		{persist.LogQuery{From: 6, Before: 6}, nil},
		{persist.LogQuery{From: 9, Before: 6}, nil},
		{persist.LogQuery{Before: 5}, nil},
		{persist.LogQuery{Before: 1}, nil},
		{persist.LogQuery{From: 150}, nil},
		{persist.LogQuery{From: 149}, numbers(149, 150)},
		{persist.LogQuery{From: math.MaxUint64}, nil},
		{persist.LogQuery{From: 148, Before: math.MaxUint64}, numbers(148, 150)},
		{persist.LogQuery{Reverse: true}, backwards(numbers(50, 150))},
		{persist.LogQuery{Reverse: true, Limit: 3}, []int{149, 148, 147}},
		{persist.LogQuery{Reverse: true, Before: 8}, []int{7, 6, 5}},
		{persist.LogQuery{Reverse: true, Before: 100, Limit: 2}, []int{99, 98}},
		{persist.LogQuery{Reverse: true, From: 147, Limit: 9}, []int{149, 148, 147}},
		{persist.LogQuery{Reverse: true, From: 9, Before: 8}, nil},
		{persist.LogQuery{Reverse: true, Before: math.MaxUint64, Limit: 1}, []int{149}},
	} {
		c.q.Key = thing
		var got []int
		for _, e := range f.read(c.q) {
			require.Equal(t, texts[e.Number], string(e.Data))
			got = append(got, int(e.Number))
		}
		require.Equal(t, c.want, got, "%+v", c.q)
	}
	require.Empty(t, f.read(persist.LogQuery{Key: key("absent"), Reverse: true}))
}

// spellings are JSON texts that a store might rewrite.
var spellings = []string{
	`{"b": 1, "a": 2}`, ` { "a" : [ 1 , 2 ] } `, "{\n\t\"a\": null\r\n}", `{"a":1,"a":2}`, `"\u0000"`, `"\ud800"`, `"\u00e9\/é"`,
	`"<&>\u003c\u2028` + "\u2028" + `"`, `1e2`, `100.00`, `-0`, `1E400`, `123456789012345678901234567890.10`, `null`, `true`,
	`""`, `[]`, `{}`, `"🦫"`, `"\ud83e\uddab"`, `{"": {"": []}}`, `"\\\""`, `"` + "\u007f" + `"`,
}

// Proves STORE-1.
func (s suite) logSpelling(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	f.must(adding(create(thing), 0, spellings...))
	found, ordered := f.read(persist.LogQuery{Key: thing}), f.order(0)
	require.Len(t, found, len(spellings))
	require.Len(t, ordered, len(spellings))
	for i, want := range spellings {
		require.Equal(t, want, string(found[i].Data))
		require.Equal(t, want, string(ordered[i].Data))
	}
}

// Proves STORE-1.
func (s suite) largeLogs(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	large := `"` + strings.Repeat("ü", 1<<19) + `"`
	f.appendAll(thing, 0, 0, large, `1`, large)
	found := f.read(persist.LogQuery{Key: thing})
	require.Len(t, found, 3)
	require.Equal(t, large, string(found[2].Data))
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprint(i))
	}
	version := f.appendAll(key("many"), 0, 0, many...)
	require.Len(t, f.log(key("many")), 300)
	ordered := f.order(0)
	require.Len(t, ordered, 303)
	require.Equal(t, many[299], string(ordered[302].Data))
	w := remove(key("many"), version)
	w.Log = &persist.LogWrite{Clear: true}
	f.must(w)
	require.Empty(t, f.log(key("many")))
	require.Len(t, f.order(0), 3)
}

// hostileLogs: neither a key that is the start of another nor one that a path or a pattern would
// change is confused with another.
//
// Proves STORE-1.
func (s suite) hostileLogs(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	keys := []persist.Key{{Kind: "a", ID: "b/c"}, {Kind: "a/b", ID: "c"}, {Kind: "ab", ID: "c"}, {Kind: "a", ID: "bc"}, {Kind: "a", ID: strings.Repeat("long", 250)}}
	for i, name := range hostile {
		keys = append(keys, persist.Key{Kind: "thing", ID: name})
		if i%5 == 0 {
			keys = append(keys, persist.Key{Kind: name, ID: "1"})
		}
	}
	for i, k := range keys {
		f.must(adding(create(k), 0, fmt.Sprint(i), `"next"`))
	}
	found := map[persist.Key][]string{}
	for _, e := range f.order(0) {
		found[e.Key] = append(found[e.Key], fmt.Sprintf("%d %s", e.Number, e.Data))
	}
	require.Len(t, found, len(keys))
	for i, k := range keys {
		want := []string{fmt.Sprintf(`0 %d`, i), `1 "next"`}
		require.Equal(t, want, f.log(k), "%q", k)
		require.Equal(t, want, found[k], "%q", k)
	}
	w := remove(keys[0], 1)
	w.Log = &persist.LogWrite{Clear: true}
	f.must(w)
	require.Empty(t, f.log(keys[0]))
	require.Len(t, f.order(0), 2*len(keys)-2)
}

// Proves STORE-1.
func (s suite) malformedLogs(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	f.must(adding(create(thing), 0, `0`))
	deleted := remove(thing, 1)
	for name, c := range map[string]struct {
		w   persist.Write
		log persist.LogWrite
	}{
		"a delete that adds":     {deleted, persist.LogWrite{First: 1, Entries: entries(`1`)}},
		"a delete that starts":   {deleted, persist.LogWrite{Clear: true, Entries: entries(`1`)}},
		"a delete that drops":    {deleted, persist.LogWrite{Drop: 1}},
		"an entry is not JSON":   {update(thing, 1), persist.LogWrite{First: 1, Entries: entries(`1`, `{`)}},
		"an entry is two values": {update(thing, 1), persist.LogWrite{First: 1, Entries: entries(`1 2`)}},
		"an entry is empty":      {update(thing, 1), persist.LogWrite{First: 1, Entries: entries(``)}},
		"an entry is nil":        {update(thing, 1), persist.LogWrite{First: 1, Entries: []json.RawMessage{nil}}},
		"an entry is not UTF-8":  {update(thing, 1), persist.LogWrite{First: 1, Entries: entries("\"\xff\"")}},
		"a number is too high":   {update(thing, 1), persist.LogWrite{First: 1 << 62, Entries: entries(`1`)}},
		"a number overflows":     {update(thing, 1), persist.LogWrite{First: math.MaxUint64, Entries: entries(`1`, `2`)}},
		"a number is dropped":    {update(thing, 1), persist.LogWrite{Drop: 2, First: 1, Entries: entries(`1`)}},
		"a drop is too high":     {update(thing, 1), persist.LogWrite{Drop: math.MaxUint64}},
	} {
		c.w.Log = &c.log
		_, err := f.write(c.w)
		require.ErrorIs(t, err, persist.ErrNotApplied, name)
	}
	require.EqualValues(t, 1, f.load(thing).Version)
	require.Equal(t, []string{`0 0`}, f.log(thing))
	require.Len(t, f.order(0), 1)
}

// Proves STORE-1.
func (s suite) entryIsACopy(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	commit := func() persist.Commit {
		w := adding(create(thing), 0, `"a"`)
		w.Log.Entries = append(make([]json.RawMessage, 0, 4), w.Log.Entries...)
		return persist.Commit{ID: "w.1", Writes: []persist.Write{w}}
	}
	c := commit()
	_, err := f.store.Commit(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, commit(), c)
	require.Nil(t, c.Writes[0].Log.Entries[:2][1])
	copy(f.read(persist.LogQuery{Key: thing})[0].Data, "xxx")
	copy(f.order(0)[0].Data, "xxx")
	require.Equal(t, []string{`0 "a"`}, f.log(thing))
	require.Equal(t, []string{`0 "a"`}, spelled(f.order(0)))
}

// Proves STORE-1.
func (s suite) logsEnd(t *testing.T) {
	f := s.fresh(t)
	logger := f.logger()
	f.must(adding(create(thing), 0, `0`))
	calls := func(ctx context.Context) (errs []error) {
		_, err := logger.ReadLog(ctx, persist.LogQuery{Key: thing})
		errs = append(errs, err)
		_, err = logger.ReadOrder(ctx, persist.OrderQuery{})
		errs = append(errs, err)
		_, err = logger.LastPosition(ctx)
		return append(errs, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range calls(ended) {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.NoError(t, f.store.Close())
	for _, err := range calls(t.Context()) {
		require.ErrorIs(t, err, persist.ErrClosed)
	}
	_, err := f.write(adding(update(thing, 1), 1, `1`))
	require.ErrorIs(t, err, persist.ErrClosed)
}
