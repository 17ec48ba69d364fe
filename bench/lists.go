package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// G4 lists the documents of one label, a page, among ever more documents.

// perLabel is the number of documents with the same label: one page.
const perLabel = 100

// parcel is a listed document.
type parcel struct {
	Status string `json:"status"`
}

var parcels = pawl.Kind[parcel]{Name: "parcel", Label: "status"}

func g4(b *bench) error {
	for _, store := range []string{inSQLite, inPostgres} {
		err := b.grow(curve{
			work: "list a page by label among %s records", store: store, sizes: []int{1_000, 31_600, b.pick(1_000_000, 100_000)},
			load: load{writers: 1, each: b.pick(1_000, 100)}, times: b.pick(5, 2), goal: atMost(0.1),
			side: func(n int) side { return paging(store, n) },
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// paging lists pages among n records. The first repetition opens the store and fills it.
func paging(store string, n int) side {
	var rt *pawl.Runtime
	return side{"Pawl", func(b *bench, _ load) (*instance, error) {
		if rt == nil {
			opened, err := openParcels(b, store, n)
			if err != nil {
				return nil, err
			}
			rt = opened
		}
		return &instance{do: func(ctx context.Context, _, i int) error {
			label, found := labelOf(i*7919%n), 0 // 7919 is a prime: the labels are all over the store
			for s, err := range parcels.List(ctx, rt, pawl.Query{Labels: []string{label}, Limit: perLabel}) {
				if err != nil {
					return err
				}
				if s.State().Status != label {
					return fmt.Errorf("listed %q for %q", s.State().Status, label)
				}
				found++
			}
			if found != perLabel {
				return fmt.Errorf("found %d of %d", found, perLabel)
			}
			return nil
		}}, nil
	}}
}

// labelOf returns the label of a record. Records of one label are far apart.
func labelOf(record int) string { return fmt.Sprintf("status-%d", record/perLabel) }

// openParcels opens a store with n records.
func openParcels(b *bench, store string, n int) (*pawl.Runtime, error) {
	place, err := b.placeIn(store)
	if err != nil {
		return nil, err
	}
	_, rt, closing, err := openStreams(b.ctx, place, nil)
	if err != nil {
		return nil, err
	}
	b.cleanup(closing)
	const most = 10_000
	into, updated := rt.Store().(persist.Restorer), time.Now().UTC().Truncate(time.Microsecond)
	for from := 0; from < n; from += most {
		records := make([]persist.Record, 0, most)
		for i := from; i < min(n, from+most); i++ {
			doc, err := json.Marshal(parcel{Status: labelOf(i)})
			if err != nil {
				return nil, err
			}
			records = append(records, persist.Record{
				Key: persist.Key{Kind: parcels.Name, ID: fmt.Sprintf("%02d-%d", i%perLabel, i)}, Version: 1, Born: 1,
				Doc: doc, Label: labelOf(i), Updated: updated, Commits: []string{"bench.1"},
			})
		}
		if err := into.Restore(b.ctx, records, 0); err != nil {
			return nil, fmt.Errorf("filling: %w", err)
		}
	}
	return rt, settle(b.ctx, place)
}
