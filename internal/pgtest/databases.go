package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Creating and dropping a database take longer than most tests. So a database that was used is emptied
// while other tests run, and gets a new name: what still uses the old one is refused.

// spare is a database that no test uses yet, or why it could not be made.
type spare struct {
	name string
	err  error
}

// takeSpare returns the next database. After the last one, another is created.
func takeSpare(admin string) <-chan spare {
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.spares == nil {
		process.spares = make(map[string][]<-chan spare)
	}
	spares := process.spares[admin]
	for len(spares) < 2 {
		spares = append(spares, prepare(func() (string, error) { return createDatabase(admin) }))
	}
	process.spares[admin] = spares[1:]
	return spares[0]
}

// giveBack makes a spare of a database that a test has used. If it cannot be emptied, it is dropped.
func giveBack(admin, name string) {
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.spares == nil { // after Stop
		return
	}
	process.spares[admin] = append(process.spares[admin], prepare(func() (string, error) {
		next := newName()
		if err := emptyDatabase(admin, name, next); err == nil {
			return next, nil
		}
		for _, name := range []string{name, next} { // on an error it is left to the server
			_ = execute(admin, dropping(name))
		}
		return createDatabase(admin)
	}))
}

// prepare starts to make a spare.
func prepare(do func() (name string, err error)) <-chan spare {
	done := make(chan spare, 1)
	go func() {
		name, err := do()
		done <- spare{name, err}
	}()
	return done
}

func newName() string { return "pawl_" + strings.ToLower(rand.Text()[:16]) }

func dropping(name string) string { return "DROP DATABASE IF EXISTS " + name + " WITH (FORCE)" }

// createDatabase creates a database.
func createDatabase(admin string) (name string, err error) {
	name = newName()
	// template0 accepts no connections, so the copy never waits for one to end.
	return name, execute(admin, "CREATE DATABASE "+name+" TEMPLATE template0")
}

// emptyDatabase ends the connections to a database, gives it a new name, and removes what is in it. It
// returns an error if anything is left, or if the server is too old for the schema that is made.
func emptyDatabase(admin, name, next string) error {
	err := execute(admin,
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+name+"'",
		"ALTER DATABASE "+name+" RENAME TO "+next, // waits for the connections to end
		"ALTER DATABASE "+next+" RESET ALL")
	if err != nil {
		return err
	}
	config, err := pgx.ParseConfig(admin)
	if err != nil {
		return err
	}
	config.Database = next
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, removeAll); err != nil {
		return err
	}
	var empty bool
	if err := conn.QueryRow(ctx, isEmpty).Scan(&empty); err != nil {
		return err
	}
	if !empty {
		return errors.New("the database is not empty")
	}
	return nil
}

// removeAll removes all schemas, and makes the schema public as template0 has it.
const removeAll = `DO $$
DECLARE
	name text;
BEGIN
	FOR name IN SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> 'information_schema' LOOP
		EXECUTE format('DROP SCHEMA %I CASCADE', name);
	END LOOP;
END
$$;
CREATE SCHEMA public AUTHORIZATION pg_database_owner;
GRANT USAGE ON SCHEMA public TO PUBLIC`

// isEmpty tests that nothing is left of what a test can make, except the schema public. Objects of
// users have numbers from 16384 on.
const isEmpty = `SELECT current_setting('server_version_num')::int >= 150000
	AND NOT EXISTS (SELECT FROM pg_class WHERE oid >= 16384)
	AND NOT EXISTS (SELECT FROM pg_proc WHERE oid >= 16384)
	AND NOT EXISTS (SELECT FROM pg_type WHERE oid >= 16384)
	AND NOT EXISTS (SELECT FROM pg_extension WHERE oid >= 16384)
	AND NOT EXISTS (SELECT FROM pg_event_trigger)
	AND NOT EXISTS (SELECT FROM pg_publication)
	AND NOT EXISTS (SELECT FROM pg_default_acl)
	AND NOT EXISTS (SELECT FROM pg_largeobject_metadata)
	AND NOT EXISTS (SELECT FROM pg_prepared_xacts WHERE database = current_database())
	AND NOT EXISTS (SELECT FROM pg_db_role_setting s WHERE s.setdatabase = d.oid)
	AND d.datacl IS NULL AND d.datconnlimit = -1
FROM pg_database d WHERE d.datname = current_database()`

// dropSpares waits for the spares, and drops them unless the server ends anyway. The caller holds
// process.mu.
func dropSpares() {
	for admin, spares := range process.spares {
		for _, next := range spares {
			if db := <-next; db.err == nil && process.server == nil {
				_ = execute(admin, dropping(db.name)) // on an error it is left to the server
			}
		}
	}
	process.spares = nil
}

// execute runs statements on a connection of its own, one after the other.
func execute(url string, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}
