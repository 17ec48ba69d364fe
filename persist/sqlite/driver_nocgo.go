//go:build !cgo

package sqlite

import _ "modernc.org/sqlite" // registers the driver

const driverName = "sqlite"

// resultCode returns the SQLite result code of err, or 0 if err does not come from SQLite.
func resultCode(err error) int { return foreignCode(err) }
