package main

import (
	"context"
	"database/sql"
	"net/http"
	"path/filepath"
	"sync"
)

// keyTable stores the responses of the get-then-set middleware.
type keyTable struct {
	get func(ctx context.Context, key string) (status int, body []byte, ok bool, err error)
	set func(ctx context.Context, key string, status int, body []byte) error
}

// openGetSetKeys returns a middleware that looks up the response of the key. If there is none, it
// runs the handler and stores its response. Each half is safe, and as durable as ours. Two
// concurrent requests both find no response.
func openGetSetKeys(b *bench, store string, e *endpoint) (http.Handler, error) {
	t := keyMap()
	if store != "memory" {
		var db *sql.DB
		var err error
		if store == inSQLite {
			folder, folderErr := b.folder()
			if folderErr != nil {
				return nil, folderErr
			}
			db, err = openPool("sqlite3", "file:"+filepath.Join(folder, "keys.db")+"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=10000")
		} else {
			url, urlErr := b.database()
			if urlErr != nil {
				return nil, urlErr
			}
			db, err = openPool("pgx", url)
		}
		if err != nil {
			return nil, err
		}
		e.close = func() { _ = db.Close() }
		if t, err = keyRows(db); err != nil {
			return nil, err
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		status, body, ok, err := t.get(r.Context(), key)
		if err == nil && !ok {
			kept := &recordedResponse{header: w.Header()}
			e.work(kept, r)
			status, body = kept.status, kept.body
			err = t.set(r.Context(), key, status, body)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(status)
		_, _ = w.Write(body)
	}), nil
}

func keyMap() keyTable {
	var mu sync.Mutex // protects all
	all := map[string]recordedResponse{}
	return keyTable{
		get: func(_ context.Context, key string) (int, []byte, bool, error) {
			mu.Lock()
			defer mu.Unlock()
			p, ok := all[key]
			return p.status, p.body, ok, nil
		},
		set: func(_ context.Context, key string, status int, body []byte) error {
			mu.Lock()
			defer mu.Unlock()
			all[key] = recordedResponse{status: status, body: body}
			return nil
		},
	}
}

func keyRows(db *sql.DB) (keyTable, error) {
	_, err := db.Exec("CREATE TABLE keys (key text PRIMARY KEY, status integer NOT NULL, body text NOT NULL)")
	return keyTable{
		get: func(ctx context.Context, key string) (status int, body []byte, ok bool, err error) {
			err = db.QueryRowContext(ctx, "SELECT status, body FROM keys WHERE key = $1", key).Scan(&status, &body)
			if err == sql.ErrNoRows {
				return 0, nil, false, nil
			}
			return status, body, true, err
		},
		set: func(ctx context.Context, key string, status int, body []byte) error {
			_, err := db.ExecContext(ctx, "INSERT INTO keys VALUES ($1, $2, $3) ON CONFLICT (key) DO UPDATE SET status = excluded.status, body = excluded.body", key, status, string(body))
			return err
		},
	}, err
}
