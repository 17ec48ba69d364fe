package fs

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// BenchmarkHotKey: all writers change the same record, and read it again after a conflict.
func BenchmarkHotKey(b *testing.B) {
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := openAt(b, b.TempDir(), Config{LockTimeout: time.Minute})
			testkit.Parallel(b, writers, func(writer, i int) error {
				return add(context.Background(), s, thing("hot"), fmt.Sprintf("w%d.%d", writer, i), 1)
			})
		})
	}
}

// BenchmarkManyKeys: each writer has its own records.
func BenchmarkManyKeys(b *testing.B) {
	for _, writers := range []int{1, 16, 64} {
		for _, size := range []int{1, 2, 10} {
			b.Run(fmt.Sprintf("writers=%d/records=%d", writers, size), func(b *testing.B) {
				s := openAt(b, b.TempDir(), Config{LockTimeout: time.Minute})
				versions := make([]uint64, writers)
				testkit.Parallel(b, writers, func(writer, i int) error {
					c := persist.Commit{ID: fmt.Sprintf("w%d.%d", writer, i)}
					for n := range size {
						c.Writes = append(c.Writes, setTo(thing(fmt.Sprintf("%d-%d", writer, n)), versions[writer], i))
					}
					versions[writer]++
					_, err := s.Commit(context.Background(), c)
					return err
				})
			})
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	s := openAt(b, b.TempDir(), Config{LockTimeout: time.Minute})
	if _, err := s.Commit(context.Background(), put("a", 0)); err != nil {
		b.Fatal(err)
	}
	testkit.Parallel(b, 4, func(int, int) error {
		_, err := s.Load(context.Background(), thing("a"))
		return err
	})
}

// BenchmarkList reads the first page, the last page, and the due records of a large kind.
func BenchmarkList(b *testing.B) {
	const records = 5000
	s := openAt(b, scratch(b), Config{LockTimeout: time.Minute})
	var last string
	for i := range records {
		id := fmt.Sprintf("%06d", i)
		if _, err := s.Commit(context.Background(), put(id, 0)); err != nil {
			b.Fatal(err)
		}
		if i == records-100 {
			page, err := s.List(context.Background(), persist.Query{Kind: "thing", Prefix: "", Limit: i})
			if err != nil {
				b.Fatal(err)
			}
			last = page.Next
		}
	}
	for name, q := range map[string]persist.Query{"first": {Kind: "thing"}, "last": {Kind: "thing", After: last}, "due": {Kind: "thing", Due: true}} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				page, err := s.List(context.Background(), q)
				if err != nil || q.Due != (len(page.Records) == 0) {
					b.Fatal(errors.Join(err, fmt.Errorf("%d records", len(page.Records))))
				}
			}
		})
	}
}
