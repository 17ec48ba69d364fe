package fs

import (
	"context"
	"errors"
	iofs "io/fs"
	"path/filepath"

	"github.com/pawl-go/pawl/persist"
)

// Describe returns facts about the store, see persist.Describer. It reads the names and sizes of all
// files. A tombstone is a file like others, so tombstones are not counted. It returns the errors of
// List.
func (s *Store) Describe(ctx context.Context) (d persist.Description, err error) {
	call, end, err := s.begin(ctx)
	if err != nil {
		return d, err
	}
	defer end()
	keys, err := s.keys(call, persist.Query{})
	if err != nil {
		return d, explain(err)
	}
	for _, key := range keys { // in the order of kinds
		if n := len(d.Kinds); n == 0 || d.Kinds[n-1].Kind != key.Kind {
			d.Kinds = append(d.Kinds, persist.KindCount{Kind: key.Kind, Tombstones: -1})
		}
		d.Kinds[len(d.Kinds)-1].Records++
	}
	d.Schema = format
	if d.Size, err = sizeOf(call, s.dir); err != nil {
		return d, explain(err)
	}
	return d, nil
}

// sizeOf returns the number of bytes in the files below folder. Files may come and go meanwhile.
func sizeOf(ctx context.Context, folder string) (size int64, err error) {
	err = filepath.WalkDir(folder, func(_ string, entry iofs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && entry.Type().IsRegular() {
			var info iofs.FileInfo
			if info, err = entry.Info(); err == nil {
				size += info.Size()
			}
		}
		if errors.Is(err, iofs.ErrNotExist) {
			return nil
		}
		return err
	})
	return size, err
}
