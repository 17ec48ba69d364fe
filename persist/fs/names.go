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
	maxPiece  = 128 // of a file name, so that with its ending it fits where names have 143 bytes
	continued = "+" // ends the name of a folder in which the rest of a long name is
	extension = ".json"
)

// reserved are names that Windows gives to devices, whatever follows after a dot.
var reserved = []string{
	"con", "prn", "aux", "nul",
	"com0", "com1", "com2", "com3", "com4", "com5", "com6", "com7", "com8", "com9",
	"lpt0", "lpt1", "lpt2", "lpt3", "lpt4", "lpt5", "lpt6", "lpt7", "lpt8", "lpt9",
}

// encode returns name as one or more pieces of a path that every file system keeps apart from
// those of any other name: lower case letters, digits, - and _ stay, each other byte becomes %xx. A
// name of more than maxPiece bytes is cut; all of its pieces but the last end with a plus sign.
func encode(name string) []string {
	if len(name) <= maxPiece && strings.IndexFunc(name, special) < 0 && !slices.Contains(reserved, name) {
		return []string{name} // as most are
	}
	pieces := []string{""}
	for i := range len(name) {
		unit := name[i : i+1]
		if !plain(name[i]) {
			unit = fmt.Sprintf("%%%02x", name[i])
		}
		last := len(pieces) - 1
		if len(pieces[last])+len(unit) > maxPiece {
			pieces[last] += continued
			pieces = append(pieces, "")
			last++
		}
		pieces[last] += unit
	}
	if last := &pieces[len(pieces)-1]; slices.Contains(reserved, *last) {
		*last = fmt.Sprintf("%%%02x", (*last)[0]) + (*last)[1:]
	}
	return pieces
}

// special reports whether encode changes a character.
func special(c rune) bool { return c > 'z' || !plain(byte(c)) }

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// decode returns the name that encode turns into these pieces, and false if there is none.
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
	return joined(s.records, encode(kind))
}

// file returns the path of the file that holds the record of key.
func (s *Store) file(key persist.Key) string {
	return joined(s.kindFolder(key.Kind), encode(key.ID)) + extension
}

// joined is filepath.Join of pieces that are clean, as those of encode are.
func joined(folder string, pieces []string) string {
	for _, piece := range pieces {
		folder += string(filepath.Separator) + piece
	}
	return folder
}
