#include "table.h"

void h3_fill_expand_c(h3_table *table) { (void)table; }

const h3_format_info h3_formats[H3_FORMATS] = {{"f32", 1, 4}, {"f16", 1, 2}, {"bf16", 1, 2}};
