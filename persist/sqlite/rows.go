package sqlite

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/pawl-go/pawl/persist"
)

// rows remembers the numbers of rows, so that a write need not look for its key in the index. They may be wrong: VACUUM may move a row, and where one was
// deleted another is put. So whoever uses a number tests that the key is there. One place serves many keys, the last of which has it.
type rows struct {
	seed   maphash.Seed
	places [1 << 16]atomic.Uint64 // a number, and in the lowest bits a tag that tells most keys of one place apart
}

const tagBits = 24

func newRows() *rows { return &rows{seed: maphash.MakeSeed()} }

// find returns the place of key, and its tag.
func (r *rows) find(key persist.Key) (place *atomic.Uint64, tag uint64) {
	hash := maphash.Comparable(r.seed, key)
	return &r.places[hash%uint64(len(r.places))], hash >> (64 - tagBits)
}

// of returns the number of the row of key as a parameter, nil if it is not known.
func (r *rows) of(key persist.Key) any {
	place, tag := r.find(key)
	if at := place.Load(); at != 0 && at&(1<<tagBits-1) == tag {
		return int64(at >> tagBits)
	}
	return nil
}

// note remembers the number of the row of key.
func (r *rows) note(key persist.Key, number int64) {
	if number <= 0 || number >= 1<<(64-tagBits) {
		return
	}
	place, tag := r.find(key)
	if at := uint64(number)<<tagBits | tag; place.Load() != at {
		place.Store(at)
	}
}
