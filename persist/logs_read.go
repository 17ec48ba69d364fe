package persist

import "context"

// ReadLog returns entries of the log of one record as [Logger] describes. It reads the state of the
// log before and after the entries: documents are removed only after the state has changed, so an
// unchanged state shows that no entry was missed.
func (d *docLogs) ReadLog(ctx context.Context, q LogQuery) ([]LogEntry, error) {
	for {
		before, err := d.state(ctx, q.Key)
		if err != nil || before.Epoch == 0 {
			return nil, err
		}
		entries, err := d.readEpoch(ctx, q, before)
		if err != nil {
			return nil, err
		}
		after, err := d.state(ctx, q.Key)
		if err != nil {
			return nil, err
		}
		if after == before {
			return entries, nil
		}
	}
}

// state returns the state of a log. Its Epoch is 0 if the log is empty.
func (d *docLogs) state(ctx context.Context, key Key) (s logState, err error) {
	records, err := loadKeys(ctx, d.Store, []Key{stateKey(key)})
	if err != nil {
		return logState{}, err
	}
	_, err = records[0].content(&s)
	return s, err
}

// readEpoch returns the entries that match q in the current epoch.
func (d *docLogs) readEpoch(ctx context.Context, q LogQuery, s logState) ([]LogEntry, error) {
	first, end := max(q.From, s.First), q.Before
	if end == 0 || end > maxLogNumber {
		end = maxLogNumber + 1
	}
	if first >= end {
		return nil, nil
	}
	lq := Query{
		Kind: logKind, From: entryKey(q.Key, s.Epoch, first).ID, Before: entryKey(q.Key, s.Epoch, end).ID,
		Reverse: q.Reverse, Limit: q.PageSize(),
	}
	var entries []LogEntry
	for {
		page, err := d.List(ctx, lq)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			var doc logDoc
			if _, err := r.content(&doc); err != nil {
				return nil, err
			}
			e := doc.entry(r.Updated)
			e.Position = 0
			if entries = append(entries, e); len(entries) == q.PageSize() {
				return entries, nil
			}
		}
		if page.Next == "" {
			return entries, nil
		}
		lq.After = page.Next
	}
}

// ReadOrder returns entries in the order of their positions as [Logger] describes.
func (d *docLogs) ReadOrder(ctx context.Context, q OrderQuery) ([]LogEntry, error) {
	last, err := d.LastPosition(ctx)
	if err != nil || q.After >= last {
		return nil, err
	}
	lq := Query{Kind: orderKind, From: sortable(q.After + 1), Labels: q.Kinds, Limit: q.PageSize()}
	var entries []LogEntry
	for {
		page, err := d.List(ctx, lq)
		if err != nil {
			return nil, err
		}
		found, err := d.counting(ctx, page.Records)
		if err != nil {
			return nil, err
		}
		entries = append(entries, found...)
		if len(entries) >= q.PageSize() {
			return entries[:q.PageSize()], nil
		}
		if page.Next == "" {
			return entries, nil
		}
		lq.After = page.Next
	}
}

// counting returns the entries at the places in records that count. It reads the states last, so a
// document that was removed meanwhile is that of an entry that does not count.
func (d *docLogs) counting(ctx context.Context, records []Record) ([]LogEntry, error) {
	places, keys := make([]logPlace, len(records)), make([]Key, len(records))
	logs := map[Key]int{} // index into states
	var stateKeys []Key
	for i, r := range records {
		p := &places[i]
		if _, err := r.content(p); err != nil {
			return nil, err
		}
		keys[i] = entryKey(p.Key, p.Epoch, p.Number)
		if _, known := logs[p.Key]; !known {
			logs[p.Key] = len(stateKeys)
			stateKeys = append(stateKeys, stateKey(p.Key))
		}
	}
	docs, err := loadKeys(ctx, d.Store, keys)
	if err != nil {
		return nil, err
	}
	states, err := loadKeys(ctx, d.Store, stateKeys)
	if err != nil {
		return nil, err
	}
	var entries []LogEntry
	for i, p := range places {
		var s logState
		var doc logDoc
		alive, err := states[logs[p.Key]].content(&s)
		if err != nil {
			return nil, err
		}
		kept, err := docs[i].content(&doc)
		if err != nil {
			return nil, err
		}
		if alive && kept && s.counts(p) && orderKey(doc.Position) == records[i].Key {
			entries = append(entries, doc.entry(docs[i].Updated))
		}
	}
	return entries, nil
}

// LastPosition returns the highest position that was ever given, as [Logger] describes.
func (d *docLogs) LastPosition(ctx context.Context) (uint64, error) {
	records, err := loadKeys(ctx, d.Store, []Key{counterKey})
	if err != nil {
		return 0, err
	}
	var count logCount
	_, err = records[0].content(&count)
	return count.Last, err
}
