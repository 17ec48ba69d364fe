// Package source asserts what a reader may expect of every file: that packages and exported
// names are explained, and that no file is too long to hold in one's head.
package source
