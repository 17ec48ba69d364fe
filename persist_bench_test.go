//go:build unix && cgo

package pawl_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/crashtest"
	"github.com/pawl-go/pawl/internal/pgtest"
)

// BenchmarkPersisted compares writers of persisted scopes with what an application would write first: read the document and its version,
// change it, write it if the version is still that, and otherwise try again later. Both use the same driver with as many connections. They take turns in
// short slices, so that the machine is equally busy for both; x-inc and x-atomic say how many times as many mutations Pawl makes. With fixed work, the time
// until 64 writers have made 20 mutations each is compared instead.
func BenchmarkPersisted(b *testing.B) {
	for _, d := range []duel{
		{store: "postgres", writers: 64, rows: 1},
		{store: "postgres", writers: 64, rows: 1, each: 20},
		{store: "postgres", writers: 64, rows: 1, settings: "-c commit_delay=2000 -c commit_siblings=0"},
		{store: "postgres", writers: 64, rows: 1, processes: 2},
		{store: "postgres", writers: 64, rows: 10_000},
		{store: "postgres", writers: 512, rows: 10_000},
		{store: "sqlite", writers: 64, rows: 1},
		{store: "sqlite", writers: 64, rows: 1, each: 20},
		{store: "sqlite", writers: 64, rows: 10_000},
		{store: "fs", writers: 64, rows: 1},
		{store: "postgres", writers: 1, rows: 1},
		{store: "sqlite", writers: 1, rows: 1},
		{store: "fs", writers: 1, rows: 1},
		{store: "postgres", writers: 1, rows: 10_000},
		{store: "postgres", writers: 4, rows: 10_000},
		{store: "postgres", writers: 8, rows: 10_000},
		{store: "sqlite", writers: 4, rows: 10_000},
		{store: "sqlite", writers: 8, rows: 10_000},
		{store: "fs", writers: 4, rows: 1_000},
		{store: "fs", writers: 8, rows: 1_000},
	} {
		b.Run(d.name(), d.run)
	}
}

const (
	duelConnections = 16                     // of a PostgreSQL pool
	duelFiles       = 4                      // connections to SQLite
	duelSlice       = 500 * time.Millisecond // one turn
	duelTurns       = 4
)

// duel is one comparison.
type duel struct {
	store     string
	writers   int
	rows      int
	each      int    // mutations of each writer; 0: as many as there is time for
	processes int    // that the writers are spread over; 0: this one
	settings  string // of PostgreSQL's sessions
}

func (d duel) name() string {
	name := fmt.Sprintf("%s-%d-writers-%d-rows", d.store, d.writers, d.rows)
	if d.each > 0 {
		name += "-fixed"
	}
	if d.processes > 0 {
		name += fmt.Sprintf("-%d-processes", d.processes)
	}
	if d.settings != "" {
		name += "-slow-commits"
	}
	return name
}

// duelDoc is what is mutated.
type duelDoc struct {
	N    int64    `json:"n"`
	Name string   `json:"name"`
	Tags []string `json:"tags"`
}

var duelStart = duelDoc{Name: "a document of a usual size", Tags: []string{"one", "two", "three"}}

// duelist makes one mutation of a row.
type duelist func(ctx context.Context, row int) error

// duelists are those who compete; naive is the first.
var duelists = []string{"naive", "inc", "atomic"}

func (d duel) run(b *testing.B) {
	var location string
	switch d.store {
	case "postgres":
		u, err := url.Parse(pgtest.URL(b))
		require.NoError(b, err)
		q := u.Query()
		q.Set("pool_max_conns", strconv.Itoa(duelConnections))
		if d.settings != "" {
			q.Set("options", d.settings)
		}
		u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
		location = u.String()
	default:
		location = d.store + ":" + filepath.Join(b.TempDir(), "state.db")
	}
	pawls, naive := openDuelists(b, location)
	for _, mutate := range []duelist{pawls["create"], naive["create"]} {
		each(d.rows, func(row int) { require.NoError(b, mutate(b.Context(), row)) })
	}
	took := make([]duelResult, len(duelists))
	for turn := range (duelTurns + 1) * len(duelists) {
		i := turn % len(duelists)
		mutate := naive["naive"]
		if i > 0 {
			mutate = pawls[duelists[i]]
		}
		var r duelResult
		if d.processes > 0 {
			r = d.spread(b, location, duelists[i])
		} else {
			r = d.turn(b.Context(), mutate)
		}
		if turn >= len(duelists) { // the first turn of each is to warm up
			took[i].add(r)
		}
	}
	for b.Loop() { // all was measured above
	}
	b.ReportMetric(0, "ns/op")
	for i, name := range duelists {
		b.ReportMetric(took[i].rate(), name+"/s")
		b.ReportMetric(took[i].p99().Seconds()*1000, name+"-p99-ms")
		b.ReportMetric(float64(took[i].Failed), name+"-failed")
		if i > 0 {
			b.ReportMetric(took[i].rate()/took[0].rate(), "x-"+name)
			b.ReportMetric(took[0].p99().Seconds()/took[i].p99().Seconds(), "x-"+name+"-p99")
		}
	}
}

// each runs work for every row, some at a time.
func each(rows int, work func(row int)) {
	var wg sync.WaitGroup
	for first := range 64 {
		wg.Go(func() {
			for row := first; row < rows; row += 64 {
				work(row)
			}
		})
	}
	wg.Wait()
}

// duelResult is what one duelist has done.
type duelResult struct {
	Done, Failed int
	Took         time.Duration
	Latencies    []time.Duration
}

func (r *duelResult) add(other duelResult) {
	r.Done += other.Done
	r.Failed += other.Failed
	r.Took += other.Took
	r.Latencies = append(r.Latencies, other.Latencies...)
}

func (r *duelResult) rate() float64 { return float64(r.Done) / r.Took.Seconds() }

func (r *duelResult) p99() time.Duration {
	slices.Sort(r.Latencies)
	return r.Latencies[len(r.Latencies)*99/100]
}

// turn lets all writers mutate, and returns how that went.
func (d duel) turn(ctx context.Context, mutate duelist) duelResult {
	results := make([]duelResult, d.writers)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			r := &results[i]
			for d.each > 0 && r.Done+r.Failed < d.each || d.each == 0 && time.Since(began) < duelSlice {
				start := time.Now()
				if err := mutate(ctx, rand.IntN(d.rows)); err != nil {
					r.Failed++
				} else {
					r.Done++
				}
				r.Latencies = append(r.Latencies, time.Since(start))
			}
		})
	}
	wg.Wait()
	var all duelResult
	for _, r := range results {
		all.add(r)
	}
	all.Took = time.Since(began)
	return all
}

// spread is turn in several processes at once.
func (d duel) spread(b *testing.B, location, name string) (all duelResult) {
	var processes []*crashtest.Child
	for range d.processes {
		processes = append(processes, crashtest.Start(b, "duel", processStore+"="+location, duelName+"="+name,
			fmt.Sprintf("%s=%d %d", duelShape, d.writers/d.processes, d.rows)))
	}
	crashtest.Ready(processes...)
	for _, p := range processes {
		for _, line := range p.Wait() {
			var r duelResult
			require.NoError(b, json.Unmarshal([]byte(line), &r))
			all.add(r)
		}
	}
	all.Took /= time.Duration(d.processes)
	return all
}

// What a process is told that takes part.
const (
	duelName  = "PAWL_TEST_DUEL"
	duelShape = "PAWL_TEST_DUEL_SHAPE"
)

func init() { children["duel"] = duelChild }

func duelChild() int {
	ctx := context.Background()
	var d duel
	_, err := fmt.Sscan(os.Getenv(duelShape), &d.writers, &d.rows)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	location, name := os.Getenv(processStore), os.Getenv(duelName)
	open := openPawl
	if name == "naive" {
		open = openNaive
	}
	all, end, err := open(location)
	mutate := all[name]
	if err == nil {
		err = mutate(ctx, 0)
	}
	if err == nil {
		crashtest.Begin()
		text, _ := json.Marshal(d.turn(ctx, mutate))
		crashtest.Say("%s", text)
		err = end()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func openDuelists(b *testing.B, location string) (pawls, naive map[string]duelist) {
	pawls, endPawl, err := openPawl(location)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, endPawl()) })
	naive, endNaive, err := openNaive(location)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, endNaive()) })
	return pawls, naive
}

func openPawl(location string) (map[string]duelist, func() error, error) {
	rt, store, err := openProcessStore(location)
	if err != nil {
		return nil, nil, err
	}
	scope := func(row int) pawl.Scope[duelDoc] { return pawl.Session[duelDoc](rt, strconv.Itoa(row)) }
	return map[string]duelist{
			"create": func(ctx context.Context, row int) error {
				_, err := scope(row).SetState(ctx, duelStart)
				return err
			},
			"inc": func(ctx context.Context, row int) error {
				_, err := scope(row).IncState(ctx, "n", 1)
				return err
			},
			"atomic": func(ctx context.Context, row int) error {
				_, err := scope(row).AtomicState(ctx, func(_ context.Context, d *duelDoc) error { d.N++; return nil })
				return err
			},
		}, func() error {
			return errors.Join(rt.Close(context.Background()), store.Close())
		}, nil
}

// naiveStore reads and swaps documents.
type naiveStore interface {
	load(ctx context.Context, row int) (doc []byte, version int64, err error)
	swap(ctx context.Context, row int, doc []byte, version int64) (swapped bool, err error)
}

// naively is the loop that an application would write.
func naively(ctx context.Context, s naiveStore, row int) error {
	for try := range 8 {
		if try > 0 {
			time.Sleep(rand.N(10 * time.Millisecond << (try - 1)))
		}
		doc, version, err := s.load(ctx, row)
		if err != nil {
			return err
		}
		var d duelDoc
		if err := json.Unmarshal(doc, &d); err != nil {
			return err
		}
		d.N++
		if doc, err = json.Marshal(d); err != nil {
			return err
		}
		if swapped, err := s.swap(ctx, row, doc, version); err != nil || swapped {
			return err
		}
	}
	return errors.New("lost too often")
}

func openNaive(location string) (map[string]duelist, func() error, error) {
	ctx := context.Background()
	scheme, path, _ := strings.Cut(location, ":")
	first, err := json.Marshal(duelStart)
	if err != nil {
		return nil, nil, err
	}
	var s naiveStore
	var create func(ctx context.Context, row int) error
	end := func() error { return nil }
	switch scheme {
	case "postgres":
		pool, err := pgxpool.New(ctx, location)
		if err != nil {
			return nil, nil, err
		}
		if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS naive (id text PRIMARY KEY, version bigint NOT NULL, doc jsonb NOT NULL)"); err != nil {
			return nil, nil, err
		}
		s, end = naivePostgres{pool}, func() error { pool.Close(); return nil }
		create = func(ctx context.Context, row int) error {
			_, err := pool.Exec(ctx, "INSERT INTO naive VALUES ($1, 1, $2)", strconv.Itoa(row), first)
			return err
		}
	case "sqlite":
		db, err := sql.Open("sqlite3", "file:"+path+".naive?_busy_timeout=60000&_journal_mode=WAL&_synchronous=FULL")
		if err != nil {
			return nil, nil, err
		}
		db.SetMaxOpenConns(duelFiles)
		db.SetMaxIdleConns(duelFiles)
		n := naiveSQLite{}
		if _, err = db.Exec("CREATE TABLE IF NOT EXISTS naive (id TEXT PRIMARY KEY, version INTEGER NOT NULL, doc TEXT NOT NULL)"); err == nil {
			n.sel, err = db.Prepare("SELECT doc, version FROM naive WHERE id = ?")
		}
		if err == nil {
			n.upd, err = db.Prepare("UPDATE naive SET doc = ?, version = version + 1 WHERE id = ? AND version = ?")
		}
		if err != nil {
			return nil, nil, err
		}
		s, end = n, db.Close
		create = func(ctx context.Context, row int) error {
			_, err := db.ExecContext(ctx, "INSERT INTO naive VALUES (?, 1, ?)", strconv.Itoa(row), string(first))
			return err
		}
	case "fs":
		f := naiveFiles{path + ".naive"}
		s = f
		if err := os.MkdirAll(f.folder, 0o700); err != nil {
			return nil, nil, err
		}
		create = func(ctx context.Context, row int) error { return f.replace(row, first, 1) }
	}
	return map[string]duelist{"create": create, "naive": func(ctx context.Context, row int) error { return naively(ctx, s, row) }}, end, nil
}

type naivePostgres struct{ pool *pgxpool.Pool }

func (s naivePostgres) load(ctx context.Context, row int) (doc []byte, version int64, err error) {
	err = s.pool.QueryRow(ctx, "SELECT doc, version FROM naive WHERE id = $1", strconv.Itoa(row)).Scan(&doc, &version)
	return doc, version, err
}

func (s naivePostgres) swap(ctx context.Context, row int, doc []byte, version int64) (bool, error) {
	tag, err := s.pool.Exec(ctx, "UPDATE naive SET doc = $1, version = version + 1 WHERE id = $2 AND version = $3", doc, strconv.Itoa(row), version)
	return tag.RowsAffected() == 1, err
}

type naiveSQLite struct{ sel, upd *sql.Stmt }

func (s naiveSQLite) load(ctx context.Context, row int) (doc []byte, version int64, err error) {
	err = s.sel.QueryRowContext(ctx, strconv.Itoa(row)).Scan(&doc, &version)
	return doc, version, err
}

func (s naiveSQLite) swap(ctx context.Context, row int, doc []byte, version int64) (bool, error) {
	result, err := s.upd.ExecContext(ctx, string(doc), strconv.Itoa(row), version)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// naiveFiles keeps each document in a file, and compares versions under a lock.
type naiveFiles struct{ folder string }

type naiveFile struct {
	Version int64           `json:"version"`
	Doc     json.RawMessage `json:"doc"`
}

func (s naiveFiles) path(row int) string { return filepath.Join(s.folder, strconv.Itoa(row)+".json") }

func (s naiveFiles) load(_ context.Context, row int) ([]byte, int64, error) {
	var f naiveFile
	data, err := os.ReadFile(s.path(row))
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	return f.Doc, f.Version, err
}

func (s naiveFiles) swap(ctx context.Context, row int, doc []byte, version int64) (bool, error) {
	lock, err := os.OpenFile(s.path(row)+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return false, err
	}
	_, current, err := s.load(ctx, row)
	if err != nil || current != version {
		return false, err
	}
	return true, s.replace(row, doc, version+1)
}

// replace writes a file durably.
func (s naiveFiles) replace(row int, doc []byte, version int64) error {
	data, err := json.Marshal(naiveFile{Version: version, Doc: doc})
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(s.folder, "new")
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), s.path(row)); err != nil {
		return err
	}
	folder, err := os.Open(s.folder)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
