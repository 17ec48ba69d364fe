package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/persist"
)

// shownView is a view of package inspect, as a table or as JSON.
type shownView struct {
	inspect.View
	limit int                                                                        // 0: all records
	keep  func(inspect.Record) bool                                                  // nil: all records
	fill  func(ctx context.Context, r inspect.Record, cells map[string]string) error // changes cells, by column; nil: does not
}

// showView prints the records of a view.
func (a *app) showView(ctx context.Context, store persist.Store, v shownView) error {
	table, printed := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0), 0
	err := each(ctx, store, v.Query, func(records []persist.Record) error {
		for _, stored := range records {
			r, err := inspect.RecordOf(stored)
			if err != nil {
				return fmt.Errorf("document of %q: %w", stored.Key, err)
			}
			if v.keep != nil && !v.keep(r) {
				continue
			}
			if printed++; v.limit > 0 && printed > v.limit {
				return errEnough
			}
			if err := a.showRow(ctx, table, v, r, printed == 1); err != nil {
				return err
			}
		}
		return outputError(table.Flush())
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return errors.Join(err, outputError(table.Flush()))
}

// showRow prints a record of a view, and the head of the table before the first one.
func (a *app) showRow(ctx context.Context, table *tabwriter.Writer, v shownView, r inspect.Record, first bool) error {
	row, err := v.Row(ctx, r)
	if err != nil {
		return err
	}
	cells := make(map[string]string, len(row))
	for i, text := range row {
		cells[v.Columns[i]] = text
	}
	if v.fill != nil {
		if err := v.fill(ctx, r, cells); err != nil {
			return err
		}
	}
	if a.out.json {
		fields := map[string]string{"id": r.ID}
		for column, text := range cells {
			fields[strings.ReplaceAll(strings.ToLower(column), " ", "_")] = text
		}
		return a.out.value(fields)
	}
	if first {
		fmt.Fprintln(table, "ID\t"+strings.ToUpper(strings.Join(v.Columns, "\t")))
	}
	line := visible(r.ID)
	for _, column := range v.Columns {
		line += "\t" + dash(cells[column])
	}
	_, err = fmt.Fprintln(table, line)
	return outputError(err)
}
