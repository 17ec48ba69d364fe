package postgres

import (
	"context"

	"github.com/pawl-go/pawl/persist"
)

// Describe returns facts about the store, see persist.Describer. It counts records in the indices,
// within Config.CommitTimeout, and returns the errors of LoadAll.
func (s *Store) Describe(ctx context.Context) (d persist.Description, err error) {
	records := s.names.of("records")
	answers, err := s.readTogether(ctx,
		query("SELECT value FROM "+s.names.of("meta")+" WHERE name = 'schema'"),
		query(`SELECT pg_catalog.pg_total_relation_size($1::pg_catalog.regclass) + pg_catalog.pg_total_relation_size($2::pg_catalog.regclass)`).
			string(records).string(s.names.of("log")),
		query(`SELECT current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'),
			current_setting('synchronous_commit'), current_setting('data_checksums')`),
		query("SELECT kind, count(*) FROM "+records+" GROUP BY kind ORDER BY kind"),
		query("SELECT kind, count(*) FROM "+records+" WHERE deleted IS NOT NULL GROUP BY kind"))
	if err != nil {
		return d, err
	}
	if len(answers[0]) > 0 {
		schema := cells(answers[0][0])
		d.Schema = int(schema.int())
	}
	size, settings := cells(answers[1][0]), cells(answers[2][0])
	d.Size, d.Settings = size.int(), settingsOf(settings)
	tombstones := make(map[string]int)
	for _, row := range answers[4] {
		row := cells(row)
		tombstones[row.string()] = int(row.int())
	}
	for _, row := range answers[3] {
		row := cells(row)
		k := persist.KindCount{Kind: row.string(), Records: int(row.int())}
		k.Tombstones = min(tombstones[k.Kind], k.Records) // the counts are of two moments
		d.Kinds = append(d.Kinds, k)
	}
	return d, nil
}

// settingsOf reads the settings that durability depends on, with advice for those that weaken it.
func settingsOf(row cells) []persist.Setting {
	settings := []persist.Setting{
		{Name: "server_version", Value: row.string()},
		{Name: "fsync", Value: row.string()},
		{Name: "full_page_writes", Value: row.string()},
		// The store sets synchronous_commit in its own transactions if it is off.
		{Name: "synchronous_commit", Value: row.string()},
		{Name: "data_checksums", Value: row.string()},
	}
	for i, advice := range map[int]string{
		1: "set fsync = on: a power failure can lose acknowledged commits",
		2: "set full_page_writes = on: a power failure can damage pages, unless the file system writes them as a whole",
	} {
		if settings[i].Value != "on" {
			settings[i].Advice = advice
		}
	}
	return settings
}
