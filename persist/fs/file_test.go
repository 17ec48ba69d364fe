package fs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// edit changes the text of a file.
func edit(t testing.TB, path string, change func(string) string) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	changed := change(string(data))
	require.NotEqual(t, string(data), changed)
	require.NoError(t, os.WriteFile(path, []byte(changed), 0o600))
}

var checksumLine = regexp.MustCompile(`\n\t"checksum": "[0-9a-f]{64}",`)

// withoutChecksum removes the checksum, as a person does to repair a file.
func withoutChecksum(text string) string { return checksumLine.ReplaceAllString(text, "") }

// TestFormat reads a file by the rules of the package comment only.
func TestFormat(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	at, err := s.Commit(t.Context(), persist.Commit{ID: "w.1", Writes: []persist.Write{{
		Key: persist.Key{Kind: "session", ID: "Ann@example"}, Version: 9007199254740993, Doc: []byte(` {"title": "<Hi>\u2028", "n": [12345678901234567890, {}]}`),
		Schema: 2, Label: "open", TTL: time.Hour, Acquire: &persist.Acquire{Holder: "me", For: time.Minute},
	}}})
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(s.dir, "records", "session", "%41nn%40example.json"))
	require.NoError(t, err)
	text := string(data)
	require.Contains(t, text, "\t\t\"doc\": {\n\t\t\t\"title\": \"<Hi>\\u2028\",\n\t\t\t\"n\": [\n\t\t\t\t12345678901234567890,\n\t\t\t\t{}\n\t\t\t]\n\t\t},\n")
	require.Contains(t, text, `"version": 9007199254740993,`)
	require.Contains(t, text, `"updated": "`+at.Format(time.RFC3339Nano)+`"`)
	var file struct {
		Format   int
		Checksum string
		Content  json.RawMessage
	}
	require.NoError(t, json.Unmarshal(data, &file))
	require.Equal(t, 1, file.Format)
	var compact bytes.Buffer
	require.NoError(t, json.Compact(&compact, file.Content))
	digest := sha256.Sum256(compact.Bytes())
	require.Equal(t, hex.EncodeToString(digest[:]), file.Checksum)
	require.Equal(t, `{"title":"<Hi>\u2028","n":[12345678901234567890,{}]}`, string(load(t, s, persist.Key{Kind: "session", ID: "Ann@example"}).Doc))
}

// TestEveryByteCounts changes each bit of a file in turn, and cuts the file after each byte. Load
// reports the damage or returns the same record.
//
// Proves STORE-6.
func TestEveryByteCounts(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), put("b", 0))
	require.NoError(t, err)
	path, want := s.file(thing("a")), load(t, s, thing("a"))
	intact, err := os.ReadFile(path)
	require.NoError(t, err)
	found := 0
	check := func(data []byte) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, data, 0o600))
		got, err := s.Load(t.Context(), thing("a"))
		if err != nil {
			damaged(t, err, path)
			found++
			return
		}
		want.Now = got.Now
		require.Equal(t, want, got, "%s", data)
	}
	for i := range intact {
		check(intact[:i])
		for bit := range 8 {
			changed := bytes.Clone(intact)
			changed[i] ^= 1 << bit
			check(changed)
		}
	}
	require.Greater(t, found, 6*len(intact))
	load(t, s, thing("b"))
	check(intact)
	_, err = s.Commit(t.Context(), put("a", 1))
	require.NoError(t, err)
}

// TestDamagedRecord: a damaged file fails only the calls that need its record, until it is
// repaired.
//
// Proves STORE-6.
func TestDamagedRecord(t *testing.T) {
	for name, damage := range map[string]func(string) string{
		"changed":   func(text string) string { return strings.Replace(text, `"n": 1`, `"n": 2`, 1) },
		"empty":     func(string) string { return "" },
		"truncated": func(text string) string { return text[:len(text)/2] },
		"zeros":     func(text string) string { return strings.Repeat("\x00", len(text)) },
		"longer":    func(text string) string { return text + "{}" },
		"newer":     func(text string) string { return strings.Replace(text, `"format": 1`, `"format": 2`, 1) },
		"other key": func(text string) string { return withoutChecksum(strings.Replace(text, `"id": "a"`, `"id": "b"`, 1)) },
		"no version": func(text string) string {
			return withoutChecksum(strings.Replace(text, `"version": 1`, `"version": 0`, 1))
		},
		"misspelt": func(text string) string { return withoutChecksum(strings.Replace(text, `"version"`, `"verison"`, 1)) },
		"no document": func(text string) string {
			return withoutChecksum(strings.Replace(text, `"doc"`, `"deleted": true, "doc"`, 1))
		},
		"never updated": func(text string) string {
			return regexp.MustCompile(`,\s*"updated": "[^"]*"`).ReplaceAllString(withoutChecksum(text), "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openAt(t, t.TempDir(), Config{})
			for _, id := range []string{"a", "b"} {
				_, err := s.Commit(t.Context(), put(id, 0))
				require.NoError(t, err)
			}
			path := s.file(thing("a"))
			intact, err := os.ReadFile(path)
			require.NoError(t, err)
			edit(t, path, damage)

			_, err = s.Load(t.Context(), thing("a"))
			damaged(t, err, path)
			_, err = s.Commit(t.Context(), put("a", 1))
			damaged(t, err, path)
			require.ErrorIs(t, err, persist.ErrNotApplied)
			_, err = s.List(t.Context(), persist.Query{Kind: "thing"})
			damaged(t, err, path)
			both := put("b", 1)
			both.Writes = append(both.Writes, setTo(thing("a"), 1, 2))
			_, err = s.Commit(t.Context(), both)
			damaged(t, err, path)
			require.ErrorIs(t, err, persist.ErrNotApplied)

			_, err = s.Commit(t.Context(), put("b", 1))
			require.NoError(t, err)
			taken, err := s.Take(t.Context(), persist.Query{Kind: "thing"}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
			require.NoError(t, err)
			require.Len(t, taken, 1)
			_, err = s.Purge(t.Context(), persist.Query{})
			require.NoError(t, err)

			require.NoError(t, os.WriteFile(path, intact, 0o600))
			_, err = s.Commit(t.Context(), put("a", 1))
			require.NoError(t, err)
		})
	}
}

// TestRepairedByHand: a file without a checksum is accepted, however it is indented.
func TestRepairedByHand(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	path := s.file(thing("a"))
	edit(t, path, func(text string) string { return strings.Join(strings.Fields(text), " ") })
	load(t, s, thing("a")) // white space is not part of the checksum
	_, err = s.Commit(t.Context(), put("a", 1))
	require.NoError(t, err)
	edit(t, path, func(text string) string {
		text = strings.Replace(text, `"n": 2`, `"n": 42`, 1)
		text = regexp.MustCompile(`"updated": "[^"]*"`).ReplaceAllString(text, `"updated": "2026-01-02T03:04:05.123456789+01:00"`)
		return withoutChecksum(text)
	})
	r := load(t, s, thing("a"))
	require.Equal(t, `{"n":42}`, string(r.Doc))
	require.Equal(t, time.Date(2026, 1, 2, 2, 4, 5, 123456000, time.UTC), r.Updated)
	_, err = s.Commit(t.Context(), put("a", 2))
	require.NoError(t, err)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Regexp(t, checksumLine, string(data))

	// A new file is accepted as well.
	require.NoError(t, os.WriteFile(s.file(thing("new")), []byte(`{"format":1,"content":{"kind":"thing","id":"new","version":7,"updated":"2026-01-02T03:04:05Z","doc":[]}}`), 0o600))
	_, err = s.Commit(t.Context(), put("new", 7))
	require.NoError(t, err)
	require.EqualValues(t, 7, load(t, s, thing("new")).Born)
}

// TestDeepDocuments: a deeply nested document is not indented, and one that could not be read again
// is refused.
func TestDeepDocuments(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	nested := func(depth int) persist.Commit {
		c := put("deep", 0)
		c.Writes[0].Key.ID = fmt.Sprint(depth)
		c.Writes[0].Doc = []byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))
		return c
	}
	for _, depth := range []int{1, maxIndented - 2, maxIndented - 1, 1000, maxNesting - 2} {
		c := nested(depth)
		_, err := s.Commit(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, string(c.Writes[0].Doc), string(load(t, s, c.Writes[0].Key).Doc))
		info, err := os.Stat(s.file(c.Writes[0].Key))
		require.NoError(t, err)
		require.Less(t, info.Size(), int64(1000+2*depth))
	}
	_, err := s.Commit(t.Context(), nested(maxNesting-1))
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.NotErrorIs(t, err, persist.ErrUnavailable)
	require.Empty(t, tempsOf(t, s))
}

// FuzzUnseal: the bytes of any file can be read again or give *DamagedError.
func FuzzUnseal(f *testing.F) {
	data, _, err := seal(persist.Record{Key: thing("a"), Version: 1, Doc: []byte(`{"n":1}`), Updated: time.Unix(1, 0).UTC()})
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte(`{"format":1,"content":{"kind":"thing","id":"a"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r persist.Record
		checksum, err := unseal("file", data, &r)
		if err != nil {
			damaged(t, err, "file")
			return
		}
		again, same, err := seal(json.RawMessage(contentOf(t, data)))
		require.NoError(t, err)
		require.Equal(t, checksum, same)
		_, err = unseal("file", again, &r)
		require.NoError(t, err)
	})
}

func contentOf(t *testing.T, data []byte) []byte {
	var e envelope
	require.NoError(t, json.Unmarshal(data, &e))
	return e.Content
}
