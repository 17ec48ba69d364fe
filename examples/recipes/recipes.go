// Package recipes has answers to common questions as small, tested functions. The pages in docs/
// explain them. Copy them: they are no part of the library.
package recipes
