// Package erase deletes everything that a store has about one user or tenant.
//
// A [Subject] says by which ids, id prefixes, workspaces and principals the user is known. [Parts]
// finds the records that belong to it, in all kinds of the store and in the layers: streams with the
// positions of reactions and snapshots, runs with their signals, batch jobs with their items,
// after-effects, and idempotency records. [List] shows them, and [Erase] deletes them with their logs.
//
//	parts, err := erase.Parts(ctx, store, erase.Subject{IDs: []string{"ann"}, Prefixes: []string{"ann/"}})
//	for found, err := range erase.List(ctx, store, parts) { ... }
//	report, err := erase.Erase(ctx, store, parts, erase.Options{})
//
// Erase works on records, without their Go types. Running processes see a deleted record as one that
// another process has deleted. The command pawl erase does the same from a shell; docs/operations.md
// describes both, and what stays behind: tombstones, backups, free pages of a database.
package erase
