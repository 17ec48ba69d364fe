package fs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// format is the number of the format that this release writes.
const format = 1

const (
	// maxIndented is the nesting up to which a file is indented. The indentation of deeper
	// documents would be much longer than the documents, so their files have one line.
	maxIndented = 16
	// maxNesting is the nesting up to which encoding/json reads what it wrote.
	maxNesting = 10000
)

// envelope is the structure of every file but pawl.json.
type envelope struct {
	Format   int             `json:"format"`
	Checksum string          `json:"checksum"`
	Content  json.RawMessage `json:"content"`
}

// seal returns the bytes of the file that holds content, and the checksum of content. It fails if
// the file could not be read again.
func seal(content any) (data []byte, checksum string, err error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // documents keep their tokens
	if err := encoder.Encode(content); err != nil {
		return nil, "", fmt.Errorf("fs: %w", err)
	}
	compact := bytes.TrimSpace(text.Bytes())
	checksum = sum(compact)
	line := fmt.Appendf(nil, `{"format":%d,"checksum":%q,"content":%s}`, format, checksum, compact)
	switch depth := nesting(line); {
	case depth > maxNesting:
		return nil, "", fmt.Errorf("fs: document nested %d levels deep, the limit is %d", depth-2, maxNesting-2)
	case depth > maxIndented:
		return append(line, '\n'), checksum, nil
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, line, "", "\t"); err != nil {
		return nil, "", fmt.Errorf("fs: %w", err)
	}
	indented.WriteByte('\n')
	return indented.Bytes(), checksum, nil
}

// nesting returns how deep the objects and arrays of a JSON text are nested.
func nesting(text []byte) int {
	depth, deepest := 0, 0
	quoted, escaped := false, false
	for _, c := range text {
		switch {
		case escaped:
			escaped = false
		case quoted:
			escaped, quoted = c == '\\', c != '"'
		case c == '"':
			quoted = true
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

func sum(data []byte) string {
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:])
}

// unseal decodes the content of data, the bytes of the file at path, and returns its checksum. It
// returns *DamagedError unless seal wrote the file or the file is a valid repair.
func unseal(path string, data []byte, content any) (checksum string, err error) {
	var e envelope
	if err := decodeStrictly(data, &e); err != nil {
		return "", &DamagedError{Path: path, Reason: err.Error()}
	}
	if e.Format != format {
		return "", &DamagedError{Path: path, Reason: fmt.Sprintf("its format is %d, this release knows %d", e.Format, format)}
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, e.Content); err != nil {
		return "", &DamagedError{Path: path, Reason: "no content"}
	}
	checksum = sum(compact.Bytes())
	if e.Checksum != "" && e.Checksum != checksum { // a repaired file has none
		return "", &DamagedError{Path: path, Reason: "checksum does not match the content"}
	}
	if err := decodeStrictly(compact.Bytes(), content); err != nil {
		return "", &DamagedError{Path: path, Reason: err.Error()}
	}
	return checksum, nil
}

// decodeStrictly decodes data, which must be one JSON value without members unknown to target.
func decodeStrictly(data []byte, target any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(target); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("empty file")
		}
		return fmt.Errorf("not a valid file: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("trailing data after the JSON document")
	}
	return nil
}

// readFile returns the bytes and the permissions of the file at path. Both belong to the same file,
// whatever is renamed meanwhile.
func readFile(path string) (data []byte, mode os.FileMode, err error) {
	file, err := openFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, 0, err
	}
	var text bytes.Buffer
	text.Grow(int(info.Size()) + bytes.MinRead)
	if _, err := text.ReadFrom(file); err != nil {
		return nil, 0, err
	}
	return text.Bytes(), info.Mode().Perm(), nil
}

// readSealed decodes the content of the file at path and returns its bytes and its checksum. It
// returns nothing if there is no such file, and *DamagedError as unseal does.
func readSealed(path string, content any) (data []byte, checksum string, err error) {
	data, _, err = readFile(path)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	checksum, err = unseal(path, data, content)
	return data, checksum, err
}

// private is the mode of files.
const private os.FileMode = 0o600

// writeTemp writes a temporary file and syncs it. The name of the file begins with the name of the
// lock that protects it: while a process holds that lock exclusively, no other process uses a
// temporary file of this lock. A file that could not be synced is removed and never synced again,
// because the kernel may have dropped its unwritten pages.
func (s *Store) writeTemp(lock int, data []byte, mode os.FileMode) (path string, err error) {
	path = filepath.Join(s.temps, fmt.Sprintf("%s-%016x%s", lockNames[lock], rand.Uint64(), extension))
	file, err := openFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return "", err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(path)
		return "", err
	}
	return path, nil
}

// lockOfTemp returns the lock that protects the temporary file of this name.
func lockOfTemp(name string) (lock int, ok bool) {
	prefix, _, _ := strings.Cut(name, "-")
	lock = slices.Index(lockNames[:], prefix)
	return lock, lock >= 0
}

// replaceFile puts data durably in the place of the file at path, which the given lock protects.
func (s *Store) replaceFile(lock int, path string, data []byte) error {
	temp, err := s.writeTemp(lock, data, private)
	if err != nil {
		return err
	}
	if err := rename(temp, path); err != nil {
		_ = os.Remove(temp)
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// makeFolder makes the folder at path, and the folders above it, where they are missing. It makes
// the entry of the folder durable even if the folder exists, because the process that made it may
// have died before that. If the sync of a new folder's entry fails, the folder is removed, because
// a second sync would prove nothing.
func makeFolder(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, iofs.ErrNotExist) && filepath.Dir(path) != path {
		if err := makeFolder(filepath.Dir(path)); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o700)
	}
	made := err == nil
	if err != nil && !errors.Is(err, iofs.ErrExist) {
		return err
	}
	if err := syncFolder(filepath.Dir(path)); err != nil {
		if made {
			_ = os.Remove(path) // fails if a file was put into it meanwhile
		}
		return err
	}
	return nil
}

// knownFolders is a set of folders that are known to be durable, so that a commit need not sync
// them again. The zero value is empty.
type knownFolders struct {
	mu    sync.Mutex // protects paths
	paths map[string]bool
}

// maxFolders limits a set of known folders: every kind has a folder, and every id that is too long
// for one name.
const maxFolders = 4096

func (k *knownFolders) has(path string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.paths[path]
}

func (k *knownFolders) add(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.paths == nil || len(k.paths) == maxFolders {
		k.paths = make(map[string]bool)
	}
	k.paths[path] = true
}

func (k *knownFolders) forget(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.paths, path)
}

// ensureFolder makes sure that a folder below the directory of the store exists and is durable.
func (s *Store) ensureFolder(path string) error {
	if path == s.dir || s.folders.has(path) {
		return nil
	}
	if err := s.ensureFolder(filepath.Dir(path)); err != nil {
		return err
	}
	if err := makeFolder(path); err != nil {
		return err
	}
	s.folders.add(path)
	return nil
}

// syncFoldersOf syncs the folders of these files, each once.
func syncFoldersOf(files []string) error {
	synced := make(map[string]bool)
	for _, file := range files {
		folder := filepath.Dir(file)
		if synced[folder] {
			continue
		}
		if err := syncFolder(folder); err != nil {
			return err
		}
		synced[folder] = true
	}
	return nil
}

// readNames returns the names in a folder, in no order.
func readNames(folder string) ([]string, error) {
	file, err := openFile(folder, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	names, err := file.Readdirnames(-1)
	return names, errors.Join(err, file.Close())
}
