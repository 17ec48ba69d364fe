package sqlite

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/cursor"
)

// statements are the SQL texts of a store, with its table names in them, and where its rows are.
type statements struct {
	prefix     string
	load       string
	loadAll    string
	versions   string
	lock       string
	floor      string
	store      string
	touch      string
	next       string
	nextAlone  string
	raiseFloor string
	remove     string
	selectFrom string
	rows       *rows
}

func newStatements(prefix string) statements {
	// In somebody else's transaction a temporary table could hide ours.
	records, meta := `main."`+prefix+`records"`, `main."`+prefix+`meta"`
	var updates []string
	names := strings.Split(columns, ", ")
	for _, name := range names[2:] { // all but the key
		updates = append(updates, name+" = excluded."+name)
	}
	selectFrom := "SELECT " + columns + ", rowid FROM " + records + " WHERE "
	next := "UPDATE " + records + " SET updated = ?1, version = ?2, doc = ?3, commits = ?4" +
		" WHERE rowid = coalesce(?5, (SELECT rowid FROM " + records + " WHERE kind = ?6 AND id = ?7)) AND kind = ?6 AND id = ?7" +
		" AND version = ?8 AND deleted = 0 AND schema = ?9 AND label = ?10 AND due IS ?11 AND expires IS NULL"
	triggers := " WHERE type = 'trigger' AND tbl_name = '" + prefix + "records' COLLATE NOCASE"
	return statements{
		prefix:   prefix,
		load:     selectFrom + "kind = ? AND id = ?",
		loadAll:  selectFrom + keysGiven,
		versions: "SELECT kind, id, version FROM " + records + " WHERE " + keysGiven,
		// It changes nothing, but SQLite takes the write lock for it.
		lock:  "UPDATE " + meta + " SET value = value WHERE name = ''",
		floor: "SELECT value FROM " + meta + " WHERE name = 'floor'",
		store: "INSERT INTO " + records + " (" + columns + ") VALUES (" + marks(len(names)) + ")" +
			" ON CONFLICT (kind, id) DO UPDATE SET " + strings.Join(updates, ", "),
		// It is what most commits come to, and looks into no index, unless a trigger has moved the row meanwhile.
		touch: "UPDATE " + records + " SET version = ?1, doc = ?2, updated = ?3, commits = ?4 WHERE rowid = coalesce(" +
			"(SELECT rowid FROM " + records + " WHERE rowid = ?5 AND kind = ?6 AND id = ?7), (SELECT rowid FROM " + records + " WHERE kind = ?6 AND id = ?7))",
		// It is what most commits are, and reads nothing first. It is for where there are no triggers.
		next: next,
		// The first of a transaction, which shows whether there are. Where there are triggers, it does nothing: by itself it is a transaction that a
		// trigger of somebody's could fail and not undo, by RAISE(FAIL), and one that ignores it would run once more when it is tried the usual way.
		nextAlone:  next + " AND NOT EXISTS (SELECT 1 FROM main.sqlite_master" + triggers + ") AND NOT EXISTS (SELECT 1 FROM temp.sqlite_master" + triggers + ")",
		raiseFloor: "UPDATE " + meta + " SET value = max(value, ?) WHERE name = 'floor'",
		remove:     "DELETE FROM " + records + " WHERE kind = ? AND id = ?",
		selectFrom: selectFrom,
		rows:       newRows(),
	}
}

// keysGiven restricts to the keys in a JSON text, see keyList. They are one parameter, because
// SQLite limits how many there can be.
const keysGiven = "(kind, id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))"

// keyList returns keys as keysGiven wants them.
func keyList(keys []persist.Key) (string, error) {
	pairs := make([][2]string, len(keys))
	for i, key := range keys {
		pairs[i] = [2]string{key.Kind, key.ID}
	}
	list, err := json.Marshal(pairs)
	return string(list), err
}

// marks returns n placeholders.
func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

// list returns the statement for the first records, limit at most, that match q at now. It says
// persist.Query.Match in SQL, with the conditions of the partial indices spelt out, because
// SQLite uses such an index only where it finds its very condition.
func (s statements) list(q persist.Query, now time.Time, limit int) (text string, args []any, err error) {
	var terms []string
	where := func(term string, values ...any) {
		terms = append(terms, term)
		args = append(args, values...)
	}
	at := now.UnixMicro()
	where("deleted = " + map[bool]string{false: "0", true: "1"}[q.Deleted])
	if q.Kind != "" {
		where("kind = ?", q.Kind)
	}
	if q.Prefix != "" {
		where("id >= ?", q.Prefix)
		if end := successor(q.Prefix); end != "" {
			where("id < ?", end)
		}
	}
	if len(q.Labels) > 0 {
		anyEmpty := false
		var labels []any
		for _, label := range q.Labels {
			labels = append(labels, label)
			anyEmpty = anyEmpty || label == ""
		}
		where("label IN ("+marks(len(labels))+")", labels...)
		if !anyEmpty {
			where("label <> ''")
		}
	}
	if q.Age > 0 {
		where("updated <= ?", now.Add(-q.Age).UnixMicro())
	}
	if q.Due {
		where("due IS NOT NULL AND due <= ?", at)
	}
	if q.Unheld {
		where("(token = 0 OR until <= ?)", at)
	}
	switch {
	case q.Deleted && q.Expired:
		where("0") // a tombstone is never expired
	case q.Deleted: // whether it was deleted or, having expired, swept
	case q.Expired:
		where("expires IS NOT NULL AND expires <= ? AND (token = 0 OR until <= ?)", at, at)
	default:
		where("(expires IS NULL OR expires > ? OR token <> 0 AND until > ?)", at, at)
	}
	order := orderOf(q)
	if q.After != "" {
		after, err := cursor.Parse(q.After)
		if err != nil {
			return "", nil, err
		}
		where("("+strings.Join(order, ", ")+") > ("+marks(len(order))+")", valuesOf(order, after)...)
	}
	// Records that match are few among those of their kind when an index was made for them. A
	// plus sign keeps SQLite from reading all in the order of the key instead, to save sorting.
	sorting := ""
	if q.Expired || q.Deleted || len(q.Labels) > 1 {
		sorting = "+"
	}
	text = s.selectFrom + strings.Join(terms, " AND ") + " ORDER BY " + sorting + strings.Join(order, ", "+sorting) + " LIMIT ?"
	return text, append(args, limit), nil
}

// orderOf returns the columns that q is listed by. The kind is left out where there is only one,
// so that the indices that have something between kind and id can be read in this order.
func orderOf(q persist.Query) []string {
	var order []string
	if q.Due {
		order = append(order, "due")
	}
	if q.Kind == "" {
		order = append(order, "kind")
	}
	return append(order, "id")
}

// valuesOf returns the values of the columns of order at p.
func valuesOf(order []string, p cursor.Position) []any {
	var values []any
	for _, column := range order {
		values = append(values, map[string]any{"due": p.Due, "kind": p.Kind, "id": p.ID}[column])
	}
	return values
}

// successor returns the first text after all that begin with prefix, or "" if there is none.
func successor(prefix string) string {
	next := []byte(prefix)
	for i := len(next) - 1; i >= 0; i-- {
		if next[i] < 0xff {
			next[i]++
			return string(next[:i+1])
		}
	}
	return ""
}
