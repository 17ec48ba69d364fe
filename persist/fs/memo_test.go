package fs

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// TestMemo: what is remembered of a file that was written is what one finds who reads it.
//
// Proves STORE-1.
func TestMemo(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, dir, Config{})
	key := persist.Key{Kind: "thing", ID: "a"}
	same := func() persist.Record {
		t.Helper()
		found, err := s.read(key)
		require.NoError(t, err)
		path := s.file(key)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		decoded, fresh, err := decodeRecord(path, data, key)
		require.NoError(t, err)
		require.Equal(t, decoded, found.Record)
		require.Equal(t, fresh, found.checksum)
		return found.Record
	}
	for i, w := range []persist.Write{
		{Doc: []byte(" { \"a\" : [ 1 , 2 ],\n\"b\":\"<&>\u2028\" } ")},
		{Doc: []byte(`null`), Label: "ä<", Schema: 3, Due: time.Date(2030, 1, 2, 3, 4, 5, 6789, time.FixedZone("east", 3600)), TTL: time.Hour},
		{Doc: []byte(`1e2`), Acquire: &persist.Acquire{Holder: "me\n", For: time.Hour}},
		{Deleted: true},
		{Doc: []byte(`"again"`), Gone: true},
	} {
		w.Key, w.Expected, w.Version = key, uint64(i), uint64(i)+1
		_, err := s.Commit(t.Context(), persist.Commit{ID: fmt.Sprintf("w.%d", i), Writes: []persist.Write{w}})
		require.NoError(t, err)
		r := same()
		if len(r.Doc) > 0 { // whoever has it may change it
			r.Doc[0], r.Commits[0] = 'x', "x"
		}
		same()
	}

	path := s.file(key) // a file that is another than the one remembered
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(data), `"version": 5`, `"version": 6`, 1)), 0o600))
	_, err = s.Load(t.Context(), key)
	require.True(t, isDamaged(err), "%v", err)
}

// TestMemoIsBounded: it forgets, rather than to grow.
//
// Proves STORE-1.
func TestMemoIsBounded(t *testing.T) {
	var m memo
	for i := range 3 * memoBytes / memoFile {
		m.keep(fmt.Sprint(i%100), make([]byte, memoFile-i), persist.Record{}, "")
		m.keep("large", make([]byte, memoFile+1), persist.Record{}, "")
	}
	total := 0
	for _, known := range m.files {
		total += len(known.data)
	}
	require.Equal(t, total, m.size)
	require.LessOrEqual(t, total, memoBytes)
	require.NotContains(t, m.files, "large")
}
