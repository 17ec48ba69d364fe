package fs

import (
	"bytes"
	"encoding/json"
	"sync"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// What memos hold at most.
const (
	memoBytes = 4 << 20  // of files
	memoFile  = 64 << 10 // of one of them
)

// memo remembers files of records with what is in them, so that one with the same bytes need not be
// decoded again. It says nothing about what is in a file now: that is read every time.
type memo struct {
	mu    sync.Mutex // protects what follows
	files map[string]memorized
	size  int
}

type memorized struct {
	data     []byte
	record   persist.Record // shares nothing with anybody's
	checksum string
}

// recall returns the record in data, which the file at path holds, and its checksum, if it is remembered.
func (m *memo) recall(path string, data []byte) (r persist.Record, checksum string, ok bool) {
	m.mu.Lock()
	known, ok := m.files[path]
	m.mu.Unlock()
	if !ok || !bytes.Equal(known.data, data) {
		return persist.Record{}, "", false
	}
	return known.record.Clone(), known.checksum, true
}

// keep remembers that data, which the file at path may hold, decodes to r.
func (m *memo) keep(path string, data []byte, r persist.Record, checksum string) {
	if len(data) > memoFile {
		return
	}
	r = r.Clone()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files == nil {
		m.files = make(map[string]memorized)
	}
	m.size += len(data) - len(m.files[path].data)
	m.files[path] = memorized{data, r, checksum}
	for other, known := range m.files { // in no order
		if m.size <= memoBytes {
			return
		}
		m.size -= len(known.data)
		delete(m.files, other)
	}
}

// asRead returns r, which could be sealed, as it is once it was written and read again. Names are valid
// UTF-8 (persist.Commit.Validate), which JSON keeps as it is.
func asRead(r persist.Record) persist.Record {
	if r.Doc != nil {
		var compact bytes.Buffer
		_ = json.Compact(&compact, r.Doc) // it is JSON, or could not have been sealed
		r.Doc = compact.Bytes()
	}
	r.Now = time.Time{}
	return r
}
