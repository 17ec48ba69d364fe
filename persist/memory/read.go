package memory

import (
	"context"

	"github.com/pawl-go/pawl/persist"
)

// Load returns the current record of key. It returns persist.ErrNotFound, with the version floor
// in Record.Version, for an absent key; persist.ErrClosed after Close; and ctx's error.
func (s *Store) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	if err := ctx.Err(); err != nil {
		return persist.Record{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return persist.Record{}, persist.ErrClosed
	}
	r := s.get(key)
	r.Now = now()
	if r.Absent() {
		return r, persist.ErrNotFound
	}
	return r.Clone(), nil
}

// LoadAll returns the records of keys at one moment. It returns persist.ErrClosed after Close, and
// ctx's error.
func (s *Store) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, persist.ErrClosed
	}
	records, at := make([]persist.Record, len(keys)), now()
	for i, key := range keys {
		records[i] = s.get(key).Clone()
		records[i].Now = at
	}
	return records, nil
}

// Versions returns the current versions of keys at one moment, 0 for a key without a record. It
// returns persist.ErrClosed after Close, and ctx's error.
func (s *Store) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, persist.ErrClosed
	}
	versions := make([]uint64, len(keys))
	for i, key := range keys {
		versions[i] = s.records[key].Version
	}
	return versions, nil
}

// get returns the record of key, or the absent record. The caller holds mu.
func (s *Store) get(key persist.Key) persist.Record {
	r, ok := s.records[key]
	if !ok {
		return persist.Record{Key: key, Version: s.floor}
	}
	return r
}
