//go:build cgo

package sqlite

import (
	"errors"

	"github.com/mattn/go-sqlite3"
)

const driverName = "sqlite3"

// resultCode returns the SQLite result code of err, or 0 if err does not come from SQLite.
func resultCode(err error) int {
	var own sqlite3.Error
	if errors.As(err, &own) {
		return int(own.ExtendedCode)
	}
	return foreignCode(err)
}
