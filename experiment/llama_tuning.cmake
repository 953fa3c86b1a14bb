# Included by CMake before llama.cpp's own files (CMAKE_PROJECT_TOP_LEVEL_INCLUDES), so that upstream's stay as they are.
#
# Unity: most of the 160 small files that only build a graph are compiled a batch at a time; their headers cost far more
# than they do (about 80 of 430 CPU seconds of a whole build). A file that defines anything of its own at file scope,
# a macro included, stays alone, so that no two can clash and each means what it means by itself.
#
# Optimised ggml: the checked build is compiled with little optimisation, but arithmetic without it would make the
# tests slower by more than it saves. Assertions are on all the same.

function(experiment_unity target folder batch)
    if(NOT TARGET ${target})
        return()
    endif()
    get_target_property(sources ${target} SOURCES)
    get_target_property(source_dir ${target} SOURCE_DIR)
    foreach(source IN LISTS sources)
        if(NOT source MATCHES "\\.cpp$")
            continue()
        endif()
        get_filename_component(file ${source} ABSOLUTE BASE_DIR ${source_dir})
        file(STRINGS ${file} own LIMIT_COUNT 1 REGEX
            "^(static|inline|constexpr|const |namespace|using|struct|class|template|enum|typedef|extern|#[ ]*(define|undef|pragma))")
        if(own OR NOT file MATCHES "/${folder}/[^/]+$")
            set_source_files_properties(${file} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
        endif()
    endforeach()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()

function(experiment_tune)
    if(EXPERIMENT_UNITY)
        experiment_unity(llama models 32)
        experiment_unity(mtmd models 16)
    endif()
    if(EXPERIMENT_GGML_OPTIMISATION)
        foreach(target ggml-base ggml-cpu)
            if(TARGET ${target})
                target_compile_options(${target} PRIVATE ${EXPERIMENT_GGML_OPTIMISATION})
            endif()
        endforeach()
    endif()
endfunction()

cmake_language(DEFER CALL experiment_tune)
