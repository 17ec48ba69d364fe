package postgres

import (
	"context"

	"github.com/pawl-go/pawl/persist"
)

// described are the settings that durability depends on. The store sets synchronous_commit in its own
// transactions if it is off.
var described = []string{"server_version", "fsync", "full_page_writes", "synchronous_commit", "data_checksums"}

// advice is for settings that weaken durability if they are not on.
var advice = map[string]string{
	"fsync":            "set fsync = on: a power failure can lose acknowledged commits",
	"full_page_writes": "set full_page_writes = on: a power failure can damage pages, unless the file system writes them as a whole",
}

// Describe returns facts about the store, see persist.Describer. It counts records in the indices,
// within Config.CommitTimeout, and returns the errors of LoadAll.
func (s *Store) Describe(ctx context.Context) (d persist.Description, err error) {
	records := s.names.of("records")
	answers, err := s.readTogether(ctx,
		query("SELECT value FROM "+s.names.of("meta")+" WHERE name = 'schema'"),
		query(`SELECT pg_catalog.pg_total_relation_size($1::pg_catalog.regclass) + pg_catalog.pg_total_relation_size($2::pg_catalog.regclass)`).
			string(records).string(s.names.of("log")),
		query("SELECT name, current_setting(name) FROM unnest($1) AS name").strings(described),
		query("SELECT kind, count(*) FROM "+records+" GROUP BY kind ORDER BY kind"),
		query("SELECT kind, count(*) FROM "+records+" WHERE deleted IS NOT NULL GROUP BY kind"))
	if err != nil {
		return d, err
	}
	if len(answers[0]) > 0 {
		d.Schema = int(answers[0][0].int())
	}
	d.Size = answers[1][0].int()
	for _, row := range answers[2] {
		setting := persist.Setting{Name: row.string(), Value: row.string()}
		if setting.Value != "on" {
			setting.Advice = advice[setting.Name]
		}
		d.Settings = append(d.Settings, setting)
	}
	tombstones := make(map[string]int)
	for _, row := range answers[4] {
		tombstones[row.string()] = int(row.int())
	}
	for _, row := range answers[3] {
		k := persist.KindCount{Kind: row.string(), Records: int(row.int())}
		k.Tombstones = min(tombstones[k.Kind], k.Records) // the counts are of two moments
		d.Kinds = append(d.Kinds, k)
	}
	return d, nil
}
