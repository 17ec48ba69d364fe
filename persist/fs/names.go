package fs

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pawl-go/pawl/persist"
)

const (
	maxPiece  = 128 // of a file name; with its ending it fits into the 143 bytes of some file systems
	continued = "+" // ends the name of a folder that holds the rest of a long name
	extension = ".json"
)

// reserved lists the names of devices on Windows, whatever follows after a dot.
var reserved = []string{
	"con", "prn", "aux", "nul",
	"com0", "com1", "com2", "com3", "com4", "com5", "com6", "com7", "com8", "com9",
	"lpt0", "lpt1", "lpt2", "lpt3", "lpt4", "lpt5", "lpt6", "lpt7", "lpt8", "lpt9",
}

// encode returns name as pieces of a path that no file system confuses with those of another name.
// Lower case letters, digits, - and _ stay, each other byte becomes %xx. A name of more than
// maxPiece bytes is cut; all pieces but the last end with a plus sign.
func encode(name string) []string {
	var pieces []string
	var piece []byte
	for i := range len(name) {
		unit := name[i : i+1]
		if !plain(name[i]) {
			unit = fmt.Sprintf("%%%02x", name[i])
		}
		if len(piece)+len(unit) > maxPiece {
			pieces, piece = append(pieces, string(piece)+continued), piece[:0]
		}
		piece = append(piece, unit...)
	}
	last := string(piece)
	if slices.Contains(reserved, last) {
		last = fmt.Sprintf("%%%02x", last[0]) + last[1:]
	}
	return append(pieces, last)
}

// plain reports whether encode keeps a byte.
func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// decode returns the name that encode turns into these pieces. It reports false if there is none.
func decode(pieces []string) (string, bool) {
	var name []byte
	for i, piece := range pieces {
		if i < len(pieces)-1 {
			piece = strings.TrimSuffix(piece, continued)
		}
		for len(piece) > 0 {
			if piece[0] != '%' {
				name, piece = append(name, piece[0]), piece[1:]
				continue
			}
			if len(piece) < 3 {
				return "", false
			}
			c, err := strconv.ParseUint(piece[1:3], 16, 8)
			if err != nil {
				return "", false
			}
			name, piece = append(name, byte(c)), piece[3:]
		}
	}
	return string(name), slices.Equal(encode(string(name)), pieces)
}

// stripeOf returns the number of the lock of key.
func stripeOf(key persist.Key) int {
	sum := sha256.Sum256([]byte(key.Kind + "\x00" + key.ID))
	return int(sum[0])
}

// kindFolder returns the path of the folder that holds the records of a kind.
func (s *Store) kindFolder(kind string) string {
	return filepath.Join(s.records, filepath.Join(encode(kind)...))
}

// file returns the path of the file that holds the record of key.
func (s *Store) file(key persist.Key) string {
	return filepath.Join(s.kindFolder(key.Kind), filepath.Join(encode(key.ID)...)) + extension
}

// keyOf returns the key of the record whose file is at path, below the folder records. It reports
// false if a store puts no record there.
func keyOf(records, path string) (persist.Key, bool) {
	path, isJSON := strings.CutSuffix(path, extension)
	kindPieces, idPieces := piecesOf(records, path)
	if !isJSON || len(idPieces) == 0 {
		return persist.Key{}, false
	}
	kind, isKind := decode(kindPieces)
	id, isID := decode(idPieces)
	return persist.Key{Kind: kind, ID: id}, isKind && isID && id != ""
}

// holdsRecords reports whether a store puts records into the folder at path, or into a folder below
// it.
func holdsRecords(records, path string) bool {
	_, id := piecesOf(records, path)
	return !slices.ContainsFunc(id, func(piece string) bool { return !strings.HasSuffix(piece, continued) })
}

// piecesOf returns the pieces of a path below the folder records: first those of the kind, which
// end with the first piece that is not continued, then those of the id.
func piecesOf(records, path string) (kind, id []string) {
	below, err := filepath.Rel(records, path)
	if err != nil || below == "." {
		return nil, nil
	}
	pieces := strings.Split(below, string(filepath.Separator))
	for i, piece := range pieces {
		if !strings.HasSuffix(piece, continued) {
			return pieces[:i+1], pieces[i+1:]
		}
	}
	return pieces, nil
}
