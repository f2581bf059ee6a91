// libb64.so.0d: the functions of libb64 that perf_analyzer calls. See build.
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// The states have libb64's sizes. bits are those of a digit or byte that is not complete.
typedef struct { int count; char bits; int column; } encoder;
typedef struct { int count; char bits; } decoder;

void base64_init_encodestate(encoder *e) { *e = (encoder){0, 0, 0}; }
void base64_init_decodestate(decoder *d) { *d = (decoder){0, 0}; }

int base64_encode_block(const char *in, int bytes, char *out, encoder *e) {
  char *at = out;
  for (int i = 0; i < bytes; i++) {
    unsigned byte = (unsigned char)in[i], had = (unsigned char)e->bits;
    int shift = 2 + 2 * e->count;  // of the byte, what belongs to the digit that it completes
    *at++ = digits[had | byte >> shift];
    e->bits = (char)(byte << (6 - shift) & 63);
    if (++e->count == 3) {
      *at++ = digits[(unsigned char)e->bits];
      e->bits = 0;
      e->count = 0;
      if ((e->column += 4) == 72) *at++ = '\n', e->column = 0;
    }
  }
  return (int)(at - out);
}

int base64_encode_blockend(char *out, encoder *e) {
  char *at = out;
  if (e->count > 0) {
    *at++ = digits[(unsigned char)e->bits];
    for (int i = e->count; i < 3; i++) *at++ = '=';
  }
  *at++ = '\n';
  return (int)(at - out);
}

int base64_decode_block(const char *in, int bytes, char *out, decoder *d) {
  char *at = out;
  for (int i = 0; i < bytes; i++) {
    const char *found = in[i] == 0 ? NULL : strchr(digits, in[i]);
    if (found == NULL) continue;  // line ends and padding
    unsigned value = (unsigned)(found - digits);
    if (d->count > 0) *at++ = (char)((unsigned char)d->bits | value >> (6 - 2 * d->count));
    d->bits = (char)(value << (2 + 2 * d->count));
    d->count = (d->count + 1) % 4;
  }
  return (int)(at - out);
}
