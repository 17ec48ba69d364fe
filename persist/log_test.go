package persist_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// highest is the highest number of a log entry, and the highest position.
const highest = 1<<62 - 1

// TestValidateLogWrite: Validate and Apply refuse a log write that no store can make. Only Validate
// reads the entries.
//
// Proves STORE-1.
func TestValidateLogWrite(t *testing.T) {
	one := []json.RawMessage{[]byte(`1`)}
	update := persist.Write{Key: thing, Expected: 1, Version: 2, Doc: []byte(`{}`)}
	remove := persist.Write{Key: thing, Expected: 1, Version: 2, Deleted: true}
	for name, c := range map[string]struct {
		write persist.Write
		log   persist.LogWrite
		ok    bool
		text  bool // the mistake is in the text of an entry
	}{
		"nothing":             {write: update, ok: true},
		"entries":             {write: update, log: persist.LogWrite{First: 7, Entries: []json.RawMessage{[]byte(` "\u0000" `), []byte(`1e999`)}}, ok: true},
		"everything":          {write: update, log: persist.LogWrite{Clear: true, Drop: 3, First: 3, Entries: one}, ok: true},
		"at the drop":         {write: update, log: persist.LogWrite{Drop: 3, First: 3, Entries: one}, ok: true},
		"below the drop":      {write: update, log: persist.LogWrite{Drop: 3, First: 2, Entries: one}},
		"highest number":      {write: update, log: persist.LogWrite{First: highest - 1, Entries: one}, ok: true},
		"highest drop":        {write: update, log: persist.LogWrite{Drop: highest}, ok: true},
		"first without entry": {write: update, log: persist.LogWrite{First: math.MaxUint64}, ok: true},
		"delete that clears":  {write: remove, log: persist.LogWrite{Clear: true}, ok: true},
		"delete that drops":   {write: remove, log: persist.LogWrite{Drop: 1}},
		"delete that adds":    {write: remove, log: persist.LogWrite{Clear: true, Entries: one}},
		"high number":         {write: update, log: persist.LogWrite{First: highest, Entries: one}},
		"many high numbers":   {write: update, log: persist.LogWrite{First: highest - 1, Entries: append(one, one...)}},
		"overflow":            {write: update, log: persist.LogWrite{First: math.MaxUint64, Entries: one}},
		"high drop":           {write: update, log: persist.LogWrite{Drop: highest + 1}},
		"not JSON":            {write: update, log: persist.LogWrite{Entries: []json.RawMessage{[]byte(`1`), []byte(`{`)}}, text: true},
		"two values":          {write: update, log: persist.LogWrite{Entries: []json.RawMessage{[]byte(`1 2`)}}, text: true},
		"nil":                 {write: update, log: persist.LogWrite{Entries: []json.RawMessage{nil}}, text: true},
		"not UTF-8":           {write: update, log: persist.LogWrite{Entries: []json.RawMessage{[]byte("\"\xff\"")}}, text: true},
	} {
		c.write.Log = &c.log
		commit := persist.Commit{ID: "w.1", Writes: []persist.Write{c.write}}
		_, applied := persist.Apply(commit, map[persist.Key]persist.Record{thing: {Key: thing, Version: 1, Updated: noon, Doc: []byte(`{}`)}}, noon)
		if c.ok || c.text {
			require.NoError(t, applied, name)
		} else {
			require.ErrorIs(t, applied, persist.ErrNotApplied, name)
		}
		if c.ok {
			require.NoError(t, commit.Validate(), name)
		} else {
			require.ErrorIs(t, commit.Validate(), persist.ErrNotApplied, name)
		}
	}
}

// TestValidateRestoreLog: a malformed entry is refused.
//
// Proves STORE-15.
func TestValidateRestoreLog(t *testing.T) {
	entry := func(change func(*persist.LogEntry)) persist.LogEntry {
		e := persist.LogEntry{Key: thing, Number: 3, Position: 9, At: started, Data: []byte(`1`)}
		if change != nil {
			change(&e)
		}
		return e
	}
	ok := entry(nil)
	for name, entries := range map[string][]persist.LogEntry{
		"none":            nil,
		"one":             {ok},
		"two":             {ok, entry(func(e *persist.LogEntry) { e.Number, e.Position = 4, 8 })},
		"two keys":        {ok, entry(func(e *persist.LogEntry) { e.ID, e.Position = "2", 8 })},
		"highest":         {entry(func(e *persist.LogEntry) { e.Number, e.Position = highest, highest })},
		"removed":         {{Key: thing, Number: 3}, {Key: thing, Number: 4}},
		"removed, placed": {ok, {Key: thing, Number: 4, Position: 9}},
		"placed, removed": {{Key: thing, Number: 4, Position: 9}, ok},
	} {
		require.NoError(t, persist.ValidateRestoreLog(entries, highest), name)
	}
	for name, change := range map[string]func(*persist.LogEntry){
		"no kind":         func(e *persist.LogEntry) { e.Kind = "" },
		"key not UTF-8":   func(e *persist.LogEntry) { e.ID = "\xff" },
		"high number":     func(e *persist.LogEntry) { e.Number = highest + 1 },
		"no position":     func(e *persist.LogEntry) { e.Position = 0 },
		"high position":   func(e *persist.LogEntry) { e.Position = highest + 1 },
		"no time":         func(e *persist.LogEntry) { e.At = time.Time{} },
		"nanoseconds":     func(e *persist.LogEntry) { e.At = e.At.Add(1) },
		"year 10000":      func(e *persist.LogEntry) { e.At = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"empty":           func(e *persist.LogEntry) { e.Data = []byte{} },
		"not JSON":        func(e *persist.LogEntry) { e.Data = []byte(`{`) },
		"not UTF-8":       func(e *persist.LogEntry) { e.Data = []byte("\"\xff\"") },
		"removed, no key": func(e *persist.LogEntry) { e.Data, e.ID = nil, "" },
		"removed, high":   func(e *persist.LogEntry) { e.Data, e.Number = nil, highest+1 },
	} {
		require.ErrorIs(t, persist.ValidateRestoreLog([]persist.LogEntry{entry(change)}, 0), persist.ErrNotApplied, name)
	}
	for name, entries := range map[string][]persist.LogEntry{
		"number twice":     {ok, entry(func(e *persist.LogEntry) { e.Position = 8 })},
		"position twice":   {ok, entry(func(e *persist.LogEntry) { e.Number = 4 })},
		"removed and kept": {{Key: thing, Number: 3}, ok},
		"third":            {ok, {Key: thing, Number: 4, Position: 9}, entry(func(e *persist.LogEntry) { e.Number = 5 })},
	} {
		require.ErrorIs(t, persist.ValidateRestoreLog(entries, 0), persist.ErrNotApplied, name)
	}
	require.ErrorIs(t, persist.ValidateRestoreLog(nil, highest+1), persist.ErrNotApplied)
}
