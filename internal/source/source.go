// Package source tests properties of every source file: packages and exported names have comments,
// no file is too long, and prose names its subject instead of using an indefinite pronoun.
package source
