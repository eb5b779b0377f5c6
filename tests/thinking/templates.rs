//! Chat templates of the nine families, written for these tests to match transformers' rendering of the published ones: the text after a
//! user's message is byte-identical, with thinking off and on (`prompt::vocabularies` compares the published ones themselves, given a
//! checkout of llama.cpp).

/// Llama 3: no thinking.
pub const LLAMA: &str = "{{ bos_token }}{% for m in messages %}\
    {{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' ~ m.content | trim ~ '<|eot_id|>' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

/// Gemma 3: no thinking, no system role.
pub const GEMMA3: &str = "{{ bos_token }}{% for m in messages %}\
    {% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}\
    {{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\\n' ~ m.content | trim ~ '<end_of_turn>\\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}";

/// Qwen 2.5: no thinking.
pub const QWEN2: &str = "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Qwen 3, dense and MoE: `enable_thinking=false` writes an empty thought; otherwise the model writes the marker.
pub const QWEN3: &str = "{% for m in messages %}{% set content = m.content %}\
    {% if m.role == 'assistant' and '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}\
    {{ '<|im_start|>' ~ m.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}\
    {% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}";

/// Qwen 3.5: opens the thought unless disabled.
pub const QWEN3_5: &str = "{% for m in messages %}{% set content = m.content | trim %}\
    {% if m.role == 'assistant' and '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}\
    {{ '<|im_start|>' ~ m.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}\
    {% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}\
    {% else %}{{ '<think>\\n' }}{% endif %}{% endif %}";

/// GLM 4.5 and 4.6: disabled by a word after the user's message and an empty thought.
pub const GLM4_MOE: &str = "[gMASK]<sop>{% for m in messages %}{{ '<|' ~ m.role ~ '|>\\n' }}\
    {% if m.role == 'assistant' and '</think>' in m.content %}{{ '<think></think>\\n' ~ m.content.split('</think>')[-1].strip() }}\
    {% else %}{{ m.content }}{% endif %}\
    {% if m.role == 'user' and enable_thinking is defined and not enable_thinking and not m.content.endswith('/nothink') %}\
    {{ '/nothink' }}{% endif %}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|assistant|>' }}\
    {% if enable_thinking is defined and not enable_thinking %}{{ '\\n<think></think>' }}{% endif %}{% endif %}";

/// MiniMax-M2: always opens the thought.
pub const MINIMAX_M2: &str = "{{ ']~!b[' }}{% for m in messages %}\
    {{ ']~b]' ~ ('ai' if m.role == 'assistant' else m.role) ~ '\\n' ~ m.content ~ '[e~[\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ ']~b]ai\\n<think>\\n' }}{% endif %}";

/// GPT-OSS: channels, and a reasoning effort.
pub const GPT_OSS: &str = "<|start|>system<|message|>Reasoning: {{ reasoning_effort if reasoning_effort is defined else 'medium' }}<|end|>\
    {% for m in messages %}{% if m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ '<|end|>' }}\
    {% else %}{{ '<|start|>' ~ ('developer' if m.role == 'system' else m.role) ~ '<|message|>' ~ m.content ~ '<|end|>' }}{% endif %}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}";
