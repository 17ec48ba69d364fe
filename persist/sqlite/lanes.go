package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// lanes are connections of our own that load single records, each for one caller at a time.
type lanes struct {
	sql    statements
	config Config
	db     *sql.DB
	free   chan *lane    // has room for all
	room   chan struct{} // has one for each that may still be opened
	opened atomic.Int64
}

// lane is one of them.
type lane struct {
	conn *sql.Conn
	on   closer
}

func newLanes(statements statements, config Config, db *sql.DB, n int) *lanes {
	l := &lanes{sql: statements, config: config, db: db, free: make(chan *lane, n), room: make(chan struct{}, n)}
	for range n {
		l.room <- struct{}{}
	}
	return l
}

// load is Store.Load.
func (l *lanes) load(ctx context.Context, key persist.Key) (persist.Record, error) {
	if ctx.Err() != nil {
		return persist.Record{}, readable(ctx, ctx.Err())
	}
	lane, err := l.take(ctx)
	if err != nil {
		return persist.Record{}, readable(ctx, err)
	}
	defer func() { l.free <- lane }()
	var r persist.Record
	var failure error
	err = patiently(ctx, time.Now(), l.config.BusyTimeout, func() error {
		if r, failure = (reads{sql: l.sql, on: lane.on}).load(background, key); isBusy(failure) {
			return failure
		}
		return nil
	})
	if err != nil {
		return persist.Record{}, err
	}
	return r, failure
}

// take returns a lane that nobody uses.
func (l *lanes) take(ctx context.Context) (*lane, error) {
	select {
	case free := <-l.free:
		return free, nil
	default:
	}
	select {
	case free := <-l.free:
		return free, nil
	case <-l.room:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	opened, err := l.open(ctx)
	if err != nil {
		l.room <- struct{}{} // for whoever waits
		return nil, err
	}
	l.opened.Add(1)
	return opened, nil
}

// open opens one more lane. Who uses it waits for locks by itself, so that its context is heeded.
func (l *lanes) open(ctx context.Context) (*lane, error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var on closer
	err = patiently(ctx, time.Now(), l.config.BusyTimeout, func() (err error) {
		if _, err = conn.ExecContext(ctx, "PRAGMA busy_timeout=0"); err == nil {
			on, err = prepareConn(ctx, conn, l.sql.load, l.sql.floor)
		}
		return err
	})
	if err != nil {
		_ = conn.Raw(func(any) error { return errDiscard }) // whoever had it next would not wait for locks
		_ = conn.Close()
		return nil, err
	}
	return &lane{conn, on}, nil
}

// close closes all lanes, when nobody uses one any more.
func (l *lanes) close() error {
	var errs []error
	for l.opened.Load() > 0 {
		lane := <-l.free
		errs = append(errs, lane.on.close(), lane.conn.Close())
		l.opened.Add(-1)
	}
	return errors.Join(errs...)
}
