package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/idempotency"
)

// Claims by hand, each with two statements: one claims and one records. A claim has an end, so that the
// claim of a process that died can be taken over, and the second statement tests that the claim is
// still its own. So they do each unit once, like Pawl.

// The names of the contenders.
const (
	claimedKey  = "INSERT ON CONFLICT, then UPDATE"
	claimedRow  = "conditional UPDATE, twice"
	claimedCall = "INSERT ON CONFLICT, then DELETE"
)

// claimLasts is how long a claim is respected without a sign of life.
const claimLasts = 30 * time.Second

// claimTable runs statements on PostgreSQL or SQLite. Both understand $1.
type claimTable struct {
	exec  func(ctx context.Context, text string, args ...any) (rows int64, err error)
	query func(ctx context.Context, text string, args []any, into ...any) error // one row; errNoRow
	close func()
}

var errNoRow = errors.New("no row")

// openDatabase opens an empty database. On PostgreSQL the pool has the default size, as in Pawl's store,
// and prepares each statement once. On SQLite there is one connection, and the durability is that of
// Pawl's store.
func openDatabase(b *bench, store string) (*claimTable, error) {
	if store == inPostgres {
		url, err := b.database()
		if err != nil {
			return nil, err
		}
		config, err := pgxpool.ParseConfig(url)
		if err != nil {
			return nil, err
		}
		config.MaxConns = pgConnections
		pool, err := pgxpool.NewWithConfig(b.ctx, config)
		if err != nil {
			return nil, err
		}
		return &claimTable{
			exec: func(ctx context.Context, text string, args ...any) (int64, error) {
				tag, err := pool.Exec(ctx, text, args...)
				return tag.RowsAffected(), err
			},
			query: func(ctx context.Context, text string, args []any, into ...any) error {
				err := pool.QueryRow(ctx, text, args...).Scan(into...)
				if errors.Is(err, pgx.ErrNoRows) {
					return errNoRow
				}
				return err
			},
			close: pool.Close,
		}, nil
	}
	folder, err := b.folder()
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(folder, "claims.db")+"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=5000&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	known := make(map[string]*sql.Stmt) // the connection is used by one goroutine at a time only
	turn := make(chan struct{}, 1)
	prepared := func(ctx context.Context, text string) (*sql.Stmt, error) {
		turn <- struct{}{}
		defer func() { <-turn }()
		if s := known[text]; s != nil {
			return s, nil
		}
		s, err := db.PrepareContext(ctx, text)
		if err == nil {
			known[text] = s
		}
		return s, err
	}
	return &claimTable{
		exec: func(ctx context.Context, text string, args ...any) (int64, error) {
			s, err := prepared(ctx, text)
			if err != nil {
				return 0, err
			}
			result, err := s.ExecContext(ctx, args...)
			if err != nil {
				return 0, err
			}
			return result.RowsAffected()
		},
		query: func(ctx context.Context, text string, args []any, into ...any) error {
			s, err := prepared(ctx, text)
			if err != nil {
				return err
			}
			if err = s.QueryRowContext(ctx, args...).Scan(into...); errors.Is(err, sql.ErrNoRows) {
				return errNoRow
			}
			return err
		},
		close: func() { _ = db.Close() },
	}, nil
}

// openClaimTable opens a database with one table.
func openClaimTable(b *bench, store, create string) (*claimTable, error) {
	db, err := openDatabase(b, store)
	if err != nil {
		return nil, err
	}
	if _, err := db.exec(b.ctx, create); err != nil {
		db.close()
		return nil, err
	}
	return db, nil
}

// now is the time of claims in milliseconds. Statements get it as a parameter.
func now() int64 { return time.Now().UnixMilli() }

var errNotMine = errors.New("the claim is lost")

// keyClaims are the keys of requests in a table. Keys expire, by an index, like those of Pawl.
type keyClaims struct{ *claimTable }

func openKeyTable(b *bench, store string) (keyClaims, error) {
	db, err := openClaimTable(b, store, `CREATE TABLE requests (key text PRIMARY KEY, fingerprint text NOT NULL,
		holder text NOT NULL, until bigint NOT NULL, expires bigint NOT NULL, response text)`)
	if err != nil {
		return keyClaims{}, err
	}
	if _, err := db.exec(b.ctx, `CREATE INDEX requests_expires ON requests (expires)`); err != nil {
		db.close()
		return keyClaims{}, err
	}
	return keyClaims{db}, nil
}

// once claims the key of a request, runs it and records its response.
func (k keyClaims) once(ctx context.Context, key string, input []byte, run func() ([]byte, error)) error {
	const (
		claim = `INSERT INTO requests (key, fingerprint, holder, until, expires) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (key) DO UPDATE
			SET holder = excluded.holder, until = excluded.until, expires = excluded.expires
			WHERE requests.response IS NULL AND requests.until < $6 AND requests.fingerprint = excluded.fingerprint`
		record = `UPDATE requests SET response = $1 WHERE key = $2 AND holder = $3 AND response IS NULL`
	)
	fingerprint := sha256.Sum256(input)
	holder := rand.Text()
	n, err := k.exec(ctx, claim, key, hex.EncodeToString(fingerprint[:]), holder,
		now()+claimLasts.Milliseconds(), now()+idempotency.DefaultTTL.Milliseconds(), now())
	if err == nil && n == 0 {
		err = errNotMine // it is known or held: a server would read it now
	}
	if err != nil {
		return err
	}
	response, err := run()
	if err != nil {
		return err
	}
	n, err = k.exec(ctx, record, string(response), key, holder)
	if err == nil && n == 0 {
		err = errNotMine
	}
	return err
}

// recorded returns the number of responses.
func (k keyClaims) recorded(ctx context.Context) (n int64, err error) {
	err = k.query(ctx, `SELECT count(*) FROM requests WHERE response IS NOT NULL`, nil, &n)
	return n, err
}

// openKeyClaims runs a function for each key.
func openKeyClaims(b *bench, store string, _ int) (*claims, error) {
	keys, err := openKeyTable(b, store)
	if err != nil {
		return nil, err
	}
	return &claims{close: keys.close, recorded: keys.recorded, do: func(ctx context.Context, writer, i int) error {
		input, err := json.Marshal(hello)
		if err != nil {
			return err
		}
		return keys.once(ctx, fmt.Sprintf("order/ann/%d-%d", writer, i), input, func() ([]byte, error) { return json.Marshal(hello) })
	}}, nil
}

// openKeyHandlers runs a handler for each key.
func openKeyHandlers(b *bench, store string, _ int) (*claims, error) {
	keys, err := openKeyTable(b, store)
	if err != nil {
		return nil, err
	}
	e := &endpoint{close: keys.close}
	e.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		key := r.Method + " " + r.URL.Path + " ann " + r.Header.Get(idempotency.Header)
		kept := &recordedResponse{header: http.Header{}}
		err = keys.once(r.Context(), key, body, func() ([]byte, error) {
			r.Body = io.NopCloser(bytes.NewReader(body))
			e.work(kept, r)
			return json.Marshal(map[string]any{"status": kept.status, "header": kept.header, "body": kept.body})
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		maps.Copy(w.Header(), kept.header)
		w.WriteHeader(kept.status)
		_, _ = w.Write(kept.body)
	})
	return &claims{close: e.close, recorded: keys.recorded, do: e.first}, nil
}

// openRowClaims moves an entity from its status to that of the claim and on to the final one.
func openRowClaims(b *bench, store string, writers int) (*claims, error) {
	db, err := openClaimTable(b, store, `CREATE TABLE doors (id text PRIMARY KEY, status text NOT NULL, holder text NOT NULL, until bigint NOT NULL, moves bigint NOT NULL)`)
	if err != nil {
		return nil, err
	}
	for writer := range writers {
		if _, err := db.exec(b.ctx, `INSERT INTO doors VALUES ($1, 'open', '', 0, 0)`, fmt.Sprint(writer)); err != nil {
			db.close()
			return nil, err
		}
	}
	const (
		read   = `SELECT status FROM doors WHERE id = $1` // a caller looks at the entity before it acts on it
		claim  = `UPDATE doors SET status = $1, holder = $2, until = $3 WHERE id = $4 AND status = $5`
		record = `UPDATE doors SET status = $1, holder = '', until = 0, moves = moves + 1 WHERE id = $2 AND holder = $3 AND until > $4`
	)
	return &claims{
		close: db.close,
		recorded: func(ctx context.Context) (n int64, err error) {
			err = db.query(ctx, `SELECT CAST(sum(moves) AS bigint) FROM doors`, nil, &n)
			return n, err
		},
		do: func(ctx context.Context, writer, i int) error {
			step := [2][3]string{{"open", "shutting", "shut"}, {"shut", "opening", "open"}}[i%2]
			id, holder, status := fmt.Sprint(writer), rand.Text(), ""
			if err := db.query(ctx, read, []any{id}, &status); err != nil {
				return err
			}
			n, err := db.exec(ctx, claim, step[1], holder, now()+claimLasts.Milliseconds(), id, status)
			if err == nil && (n == 0 || status != step[0]) {
				err = errNotMine
			}
			if err != nil {
				return err
			}
			n, err = db.exec(ctx, record, step[2], id, holder, now())
			if err == nil && n == 0 {
				err = errNotMine
			}
			return err
		},
	}, nil
}

// openCallClaims admits one call per session at a time: the row of the session is the admission.
func openCallClaims(b *bench, store string, _ int) (*claims, error) {
	db, err := openClaimTable(b, store, `CREATE TABLE calls (session text PRIMARY KEY, holder text NOT NULL, until bigint NOT NULL)`)
	if err != nil {
		return nil, err
	}
	const (
		admit = `INSERT INTO calls VALUES ($1, $2, $3) ON CONFLICT (session) DO UPDATE
			SET holder = excluded.holder, until = excluded.until WHERE calls.until < $4`
		leave = `DELETE FROM calls WHERE session = $1 AND holder = $2`
	)
	return &claims{
		close: db.close,
		do: func(ctx context.Context, writer, _ int) error {
			session, holder := fmt.Sprint(writer), rand.Text()
			n, err := db.exec(ctx, admit, session, holder, now()+claimLasts.Milliseconds(), now())
			if err == nil && n == 0 {
				err = errNotMine // another call runs: a server would wait
			}
			if err != nil {
				return err
			}
			n, err = db.exec(ctx, leave, session, holder)
			if err == nil && n == 0 {
				err = errNotMine
			}
			return err
		},
	}, nil
}
